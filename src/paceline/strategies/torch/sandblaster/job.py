"""A Sandblaster worker: asks for portions of the batch, computes their gradients and pushes them to the servers.

Between workers, coordinator and servers every message is one tensor of fixed length on a gloo group.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.costs.servers import Cut
from paceline.frameworks.torch.flat_parameters import FlatParameters
from paceline.frameworks.torch.training import TorchJob
from paceline.strategies.torch.sandblaster.messages import ANSWER
from paceline.workloads.base import Weights

WORD_TAG, VALUE_TAG, GRADIENT_TAG = 0, 1, 2
# What a worker says and the only answer that is no portion.
ASK, RESULT, VALUES, DONE = range(4)
OVER = -1


@dataclass(frozen=True)
class Places:
    """The ranks of a run's processes: workers, then the coordinator, then servers."""

    workers: range
    coordinator: int
    servers: range

    @classmethod
    def of(cls, workers: int, servers: int) -> "Places":
        """The ranks of a run with so many workers and servers."""
        return cls(range(workers), workers, range(workers + 1, workers + 1 + servers))


def message(*numbers: float) -> Tensor:
    """Numbers as a tensor that can be sent."""
    return torch.tensor(numbers, dtype=torch.float64)


class SandblasterJob(TorchJob):
    """Takes part in a step until its coordinator says that it is over."""

    def __init__(
        self, context: Context, module: nn.Module, device: torch.device,
        servers: int, portions: int, slow_ms: float,
    ) -> None:  # fmt: skip
        self._places = Places.of(context.spec.workers, servers)
        # Servers and the coordinator have no part in it and do not wait for it.
        workers = dist.new_group(list(self._places.workers), use_local_synchronization=True)
        super().__init__(context, module, device, None, partial(dist.barrier, group=workers))
        self._flat = FlatParameters(module, device)
        self._slices = Cut(servers, max(1, self._flat.elements)).pieces(self._flat.elements)
        self._pause_seconds = slow_ms / 1000 if context.process.index == len(self._places.workers) - 1 else 0.0
        self._patience = timedelta(seconds=context.spec.timeout_seconds)
        batch = context.spec.samples_per_step
        self._edges = [batch * portion // portions for portion in range(portions + 1)]
        self._steps, self._computed, self._counted = 0, 0, 0
        self._pushing: list[Any] = []
        self._step_losses: list[float] = []
        if context.process.rank == 0:
            self._send_initial_parameters()

    def _send_initial_parameters(self) -> None:
        elements = message(self._flat.elements)
        for server in self._places.servers:
            dist.send(elements, server, tag=WORD_TAG)
        for piece in self._slices:
            dist.send(self._flat.landing[piece.start : piece.stop], self._places.servers[piece.server], tag=VALUE_TAG)

    def start_epoch(self, epoch: int) -> None:
        """Any worker may be handed any part of a batch, so each has the whole order."""
        self._order = torch.from_numpy(self._context.order.share(epoch, 0, 1)).to(self._device)
        self._step_losses = []

    def step(self, first: int, count: int) -> None:
        """Computes the portions that it is handed, until the step is over."""
        for number in range(first, first + count):
            while (portion := self._ask(ASK)) != OVER:
                self._compute(number, portion)
            self._steps += 1

    def _ask(self, wish: int, portion: int = 0, loss: float = 0.0) -> int:
        """The coordinator's answer; new parameters are in their place when it has come."""
        answer = message(*[0.0] * ANSWER)
        coming = dist.irecv(answer, self._places.coordinator, tag=WORD_TAG)
        dist.send(message(wish, self._steps, portion, loss), self._places.coordinator, tag=WORD_TAG)
        # An answer may have to wait for the slowest worker.
        coming.wait(self._patience)
        verdict, new, step_loss = answer.tolist()
        if new:
            self._receive_values()
        if verdict == OVER:
            self._step_losses.append(step_loss)
        return int(verdict)

    def _receive_values(self) -> None:
        for piece in self._slices:
            landing = self._flat.landing[piece.start : piece.stop]
            dist.recv(landing, self._places.servers[piece.server], tag=VALUE_TAG)
        self._flat.land()

    def _compute(self, number: int, portion: int) -> None:
        start, stop = self._edges[portion : portion + 2]
        inputs, targets = self._data.batch(self._data.train, self._order[number, start:stop])
        share = (stop - start) / self._edges[-1]
        loss = float(self._backward(inputs, targets)) * share
        self._computed += 1
        sleep(self._pause_seconds)
        if self._ask(RESULT, portion, loss):
            self._push(share)
        self._module.zero_grad(set_to_none=True)

    def _push(self, share: float) -> None:
        """The next portion is computed while this one is on its way."""
        self._finish_pushing()
        for parameter in range(len(self._flat.parameters)):
            self._flat.keep_gradient(parameter, share, add=False)
        super().wait()
        self._counted += 1
        self._pushing = [
            dist.isend(
                self._flat.gradients[piece.start : piece.stop], self._places.servers[piece.server], tag=GRADIENT_TAG
            )
            for piece in self._slices
        ]

    def _finish_pushing(self) -> None:
        for work in self._pushing:
            work.wait()
        self._pushing = []

    def losses(self) -> list[float]:
        """Losses of whole batches, the same on every worker."""
        return self._step_losses

    def evaluate(self) -> Evaluation:
        """Evaluates the parameters after the last step."""
        self._ask(VALUES)
        return super().evaluate()

    def weights(self) -> Weights:
        """All weights after the last step."""
        self._ask(VALUES)
        return super().weights()

    def details(self) -> dict[str, Any]:
        """Adds the portions that this worker computed, and how many of them counted."""
        return super().details() | {"portions": self._computed, "portions_counted": self._counted}

    def close(self) -> None:
        """Tells the coordinator that this worker is done."""
        self._finish_pushing()
        dist.send(message(DONE, self._steps, 0, 0), self._places.coordinator, tag=WORD_TAG)
        del self._flat
        super().close()
