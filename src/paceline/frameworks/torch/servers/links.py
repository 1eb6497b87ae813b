"""Links between a worker and a server: through the group that all processes of a run joined, or a pair of their own.

Nobody can leave a group or join it later. Where workers come and go, each has a gloo group of two with each server, and
a store that the first worker keeps says who has come: a departure breaks its own links only.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from paceline.contract.context import Context
from paceline.frameworks.torch.group import open_store, patience_of

# Ranks within a pair.
WORKER, SERVER = 0, 1


class Link(Protocol):
    """The way to one other process; what is returned is waited for."""

    def send(self, tensor: Tensor, tag: int) -> Any:
        """Sends a tensor from its own memory."""

    def receive(self, tensor: Tensor, tag: int) -> Any:
        """Receives into a tensor."""


@dataclass(frozen=True)
class GroupLink:
    """A link within the group of all processes."""

    peer: int

    def send(self, tensor: Tensor, tag: int) -> Any:
        """Sends to the rank."""
        return dist.isend(tensor, self.peer, tag=tag)

    def receive(self, tensor: Tensor, tag: int) -> Any:
        """Receives from the rank."""
        return dist.irecv(tensor, self.peer, tag=tag)


@dataclass(frozen=True)
class PairLink:
    """A link of its own between a worker and a server."""

    pair: Any
    peer: int

    def send(self, tensor: Tensor, tag: int) -> Any:
        """Sends to the other side."""
        return self.pair.send([tensor], self.peer, tag)

    def receive(self, tensor: Tensor, tag: int) -> Any:
        """Receives from the other side."""
        return self.pair.recv([tensor], self.peer, tag)


class Arrivals:
    """Who has come: the store of the first worker counts the lives of each, and a pair is made for each life."""

    def __init__(self, context: Context) -> None:
        self._context, self._patience = context, patience_of(context)
        self._store = open_store(context, self._patience)

    def announce(self, servers: int) -> tuple[list[PairLink], int]:
        """A worker's links to all servers, and the number of its life: 1 unless it comes in the place of another."""
        rank = self._context.process.rank
        life = int(self._store.add(f"lives-{rank}", 1))
        return [PairLink(self._pair(rank, life, server, WORKER), SERVER) for server in range(servers)], life

    def life_of(self, worker: int) -> int:
        """How many processes have come in the place of that worker so far."""
        return int(self._store.add(f"lives-{worker}", 0))

    def meet(self, worker: int, life: int) -> PairLink:
        """A server's link to a worker that has come."""
        return PairLink(self._pair(worker, life, self._context.process.index, SERVER), WORKER)

    def _pair(self, worker: int, life: int, server: int, side: int) -> Any:
        store = dist.PrefixStore(f"worker-{worker}-{life}-server-{server}", self._store)
        return dist.ProcessGroupGloo(store, side, 2, self._patience)
