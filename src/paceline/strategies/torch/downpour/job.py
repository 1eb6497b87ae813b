"""Downpour's two sides: workers that push and fetch in their own rhythm, servers that apply whatever comes at once."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.contract.job import Evaluation, Share
from paceline.costs.servers import Cut
from paceline.frameworks.staleness import Staleness
from paceline.frameworks.torch.group import leave_group
from paceline.frameworks.torch.servers import client
from paceline.frameworks.torch.servers.client import ServedJob, ServerClient
from paceline.frameworks.torch.servers.links import Arrivals, GroupLink, Link
from paceline.frameworks.torch.servers.server import Shard
from paceline.workloads.base import Weights

# How often a server looks for workers that have come.
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Rhythm:
    """Steps from one push to the next and from one fetch to the next, and the step a worker makes in between."""

    push: int
    fetch: int
    local_lr: float


class Downpour(ServerClient):
    """Pushes accumulated gradients and fetches parameters without regard for other workers."""

    def __init__(
        self, context: Context, module: nn.Module, device: torch.device, cut: Cut, rhythm: Rhythm,
        links: Sequence[Link] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, module, device, cut, links)
        self._rhythm, self._steps, self.updates, self.staleness = rhythm, 0, 0, Staleness()
        self._replies: list[Tensor] = []

    def open_step(self) -> None:
        """Whether this step's gradients are the last of a push."""
        accumulated = self._steps % self._rhythm.push
        self._steps += 1
        push = not self._steps % self._rhythm.push
        self.begin(push=push, fetch=self._is_fetching_step, scale=1.0, add=accumulated > 0)
        if push:
            self.updates += 1
            self._replies = [torch.zeros(1, dtype=torch.int64) for _ in self.links]
            self._transfers += [
                link.receive(reply, client.REPLY_TAG) for reply, link in zip(self._replies, self.links, strict=True)
            ]

    @property
    def _is_fetching_step(self) -> bool:
        return not self._steps % self._rhythm.fetch

    def step(self) -> None:
        """After the backward pass: a fetch that no push carries is asked for now, when the old values are of no use."""
        super().step()
        if self._is_fetching_step and not self._pushing:
            self.request_parameters()

    def _on_gradient(self, parameter: int) -> None:
        if not self._is_fetching_step and (gradient := self.flat.parameters[parameter].grad) is not None:
            self.flat.parameters[parameter].data.add_(gradient, alpha=-self._rhythm.local_lr)
        super()._on_gradient(parameter)

    def finish(self) -> None:
        """Also receives how stale the last push was."""
        super().finish()
        for reply in self._replies:
            self.staleness.add(int(reply))
        self._replies = []


class DownpourJob(ServedJob):
    """Evaluates and gives out what the servers have, not the copy that this worker happens to hold."""

    _client: Downpour
    # Each worker's pushes are updates of their own, which it makes or skips alone.
    has_parts = False

    def __init__(
        self, context: Context, module: nn.Module, device: torch.device, client: Downpour, life: int = 1
    ) -> None:
        super().__init__(context, module, device, client)
        if life > 1:
            # The servers have come far since the parameters that this worker built.
            self._fetch()

    def share(self, place: int) -> Share:
        """The worker's own share of a step, which nobody else trains on."""
        spec, index = self._context.spec, self._context.process.index
        return Share(index, spec.samples_per_step // spec.workers, (index,))

    def evaluate(self) -> Evaluation:
        """Evaluates the servers' parameters; training goes on with those that this worker had."""
        self._client.finish()
        values = self._client.flat.values
        kept = values.clone()
        self._client.request_parameters(client.LOOK)
        self._client.finish()
        evaluation = super().evaluate()
        values.copy_(kept)
        return evaluation

    def weights(self) -> Weights:
        """The servers' parameters after every worker's last push."""
        self.align()
        self._fetch()
        return super().weights()

    def details(self) -> dict[str, Any]:
        """Adds what this worker contributed."""
        return super().details() | {"updates": self._client.updates, "staleness": self._client.staleness.summary()}

    def _fetch(self) -> None:
        self._client.finish()
        self._client.request_parameters()
        self._client.finish()


class AsynchronousServer:
    """One thread attends to each worker; a piece is updated by one at a time, but a fetch may see others' updates."""

    def __init__(self, shard: Shard, rate: Callable[[int], float]) -> None:
        # `rate` is the learning rate after so many updates.
        self._shard, self._rate = shard, rate
        self._locks = [Lock() for _ in shard.pieces]
        self._counting, self._version, self._staleness = Lock(), 0, Staleness()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()

    def serve(self) -> None:
        """Serves until every worker is done or one is lost."""
        for worker in self._shard.workers:
            Thread(target=self._attend_and_tell, args=(GroupLink(worker),), daemon=True).start()
        for _ in self._shard.workers:
            outcome = self._outcomes.get()
            if outcome is not None:
                raise outcome

    def _attend_and_tell(self, link: Link) -> None:
        try:
            self._attend(link)
        except BaseException as error:
            self._outcomes.put(error)
        else:
            self._outcomes.put(None)

    def _attend(self, link: Link) -> None:
        word, reply, fetched = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 0
        gradients = [torch.empty_like(piece.values.data) for piece in self._shard.pieces]
        sending: list[Any] = []
        while True:
            link.receive(word, client.WORD_TAG).wait(self._shard.patience)
            for sent in sending:
                sent.wait()
            wish, sending = int(word), []
            if wish == client.DONE:
                return
            arriving = self._receive(link, gradients) if wish & client.PUSH else []
            version = self._version
            for place, piece in enumerate(self._shard.pieces):
                if wish & client.PUSH:
                    arriving[place].wait(self._shard.patience)
                    version = self._version if place == 0 else version
                    self._apply(place, gradients[place])
                if wish & (client.FETCH | client.LOOK):
                    sending.append(link.send(piece.values.data, client.value_tag(piece.number)))
            if wish & client.PUSH:
                reply[0] = version - fetched
                self._count(version - fetched)
                sending.append(link.send(reply, client.REPLY_TAG))
            if wish & client.FETCH:
                # Its own update is in what it fetched; those that others made meanwhile may or may not be.
                fetched = version + (wish & client.PUSH)

    def _receive(self, link: Link, gradients: list[Tensor]) -> list[Any]:
        return [
            link.receive(gradient, client.gradient_tag(piece.number))
            for piece, gradient in zip(self._shard.pieces, gradients, strict=True)
        ]

    def _apply(self, place: int, gradient: Tensor) -> None:
        piece = self._shard.pieces[place]
        with self._locks[place]:
            for group in piece.optimizer.param_groups:
                group["lr"] = self._rate(self._version)
            piece.update(gradient)

    def _count(self, staleness: int) -> None:
        with self._counting:
            self._version += 1
            self._staleness.add(staleness)

    def details(self) -> dict[str, Any]:
        """What it held and did, and how stale the gradients were."""
        return {
            "held_bytes": self._shard.held_bytes(),
            "updates": self._version,
            "staleness": self._staleness.summary(),
        }

    def close(self) -> None:
        """Every worker has what it asked for."""
        if dist.is_initialized():
            leave_group()


class OpenServer(AsynchronousServer):
    """A server whose workers come and go: each is attended to from when it comes until it is done or lost."""

    def __init__(self, shard: Shard, rate: Callable[[int], float], arrivals: Arrivals, first: Link) -> None:
        super().__init__(shard, rate)
        self._arrivals = arrivals
        # The first worker is there already: it sent the parameters.
        self._lives = {worker: int(worker == 0) for worker in shard.workers}
        self._first, self._attended, self._lost = first, 0, 0

    def serve(self) -> None:
        """Serves until nobody is left, once every worker has come at least once."""
        self._start(lambda: self._first)
        while self._attended or not all(self._lives.values()):
            self._attend_new()
            with suppress(Empty):
                outcome = self._outcomes.get(timeout=LOOK_SECONDS)
                self._attended -= 1
                self._lost += outcome is not None

    def _attend_new(self) -> None:
        """Attends to those who have come since the last look; where the first worker is gone, nobody comes any more."""
        for worker, known in self._lives.items():
            try:
                life = self._arrivals.life_of(worker)
            except RuntimeError:
                self._lives = {place: max(1, lives) for place, lives in self._lives.items()}
                return
            if life > known:
                self._lives[worker] = life
                self._start(partial(self._arrivals.meet, worker, life))

    def _start(self, meet: Callable[[], Link]) -> None:
        self._attended += 1
        Thread(target=self._meet_and_attend, args=(meet,), daemon=True).start()

    def _meet_and_attend(self, meet: Callable[[], Link]) -> None:
        try:
            link = meet()
        except BaseException as error:  # it was lost before it was met
            self._outcomes.put(error)
        else:
            self._attend_and_tell(link)

    def details(self) -> dict[str, Any]:
        """With those who went without a word."""
        return {**super().details(), "workers_lost": self._lost}
