"""A parameter server's side: it keeps its pieces of the parameters, updates them with gradients and hands them out.

A server sleeps while it waits, so one that shares a core with a worker costs it only what it computes.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.costs.servers import Cut, Stretch, within
from paceline.errors import ModelError
from paceline.frameworks.torch.group import leave_group
from paceline.frameworks.torch.optimizer import make_optimizer, user_optimizer, with_schedule
from paceline.frameworks.torch.precision import parameter_type
from paceline.frameworks.torch.servers.client import DONE, WORD_TAG, gradient_tag, tells_dimensions, value_tag
from paceline.frameworks.torch.servers.links import GroupLink, Link
from paceline.frameworks.torch.training import held_bytes

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

# Whose step on a part of the parameters is that part of the step on all of them.
ELEMENTWISE = (
    torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax,
    torch.optim.ASGD, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD,
)  # fmt: skip


def elementwise_optimizer(context: Context) -> MakeOptimizer:
    """The run's optimizer for any piece of the parameters; the user's own is refused if it needs them whole."""
    user_model, spec = context.user_model, context.spec
    if user_model is None or user_model.optimizer is None:
        return lambda pieces: with_schedule(context, make_optimizer(spec.optimizer, pieces, eager=True))
    make = user_model.optimizer

    def checked(pieces: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = user_optimizer(user_model.label, make(iter(pieces)))
        if not isinstance(optimizer, ELEMENTWISE):
            raise ModelError(
                f"optimizer() of {user_model.label} returns {type(optimizer).__name__}, which servers cannot run on a "
                f"part of the parameters; return one of PyTorch's elementwise optimizers such as Adam, or use torch-ddp"
            )
        return optimizer

    return checked


class ServedPiece:
    """One piece with its own optimizer, so that it can be updated while others are still arriving."""

    def __init__(
        self, number: int, values: Tensor, make: MakeOptimizer, stretches: Sequence[Stretch] | None = None
    ) -> None:
        # `stretches` tell apart what belongs to matrices, where the optimizer treats them differently.
        self.number = number
        self.values = nn.Parameter(values)
        self._sizes = [stretch.elements for stretch in stretches or ()]
        # A stretch of matrices has two dimensions, as they have: by that the optimizer knows what to decay.
        self._parts = [
            nn.Parameter(part.view(1, -1) if stretch.of_matrices else part)
            for part, stretch in zip(values.split(self._sizes), stretches, strict=True)
        ] if stretches else [self.values]  # fmt: skip
        self.optimizer = make(self._parts)

    def update(self, gradient: Tensor) -> None:
        """One step of the optimizer."""
        gradients = gradient.split(self._sizes) if self._sizes else (gradient,)
        for part, its_gradient in zip(self._parts, gradients, strict=True):
            part.grad = its_gradient.view_as(part)
        self.optimizer.step()


class Shard:
    """All pieces of one server, in the order in which their gradients come."""

    def __init__(self, context: Context, cut: Cut, make: MakeOptimizer, first: Link | None = None) -> None:
        # `first` is the link to the first worker, which has the parameters to start from.
        first = first or GroupLink(0)
        # A worker may think, evaluate or compile for long; one that died closes its connection.
        self.patience = timedelta(seconds=context.spec.timeout_seconds)
        self.workers = range(context.spec.workers)
        elements = torch.zeros(1, dtype=torch.int64)
        first.receive(elements, WORD_TAG).wait(self.patience)
        stretches = self._receive_stretches(first) if tells_dimensions(context) else None
        numbered = enumerate(cut.pieces(int(elements)))
        kept = [(number, piece) for number, piece in numbered if piece.server == context.process.index]
        self.values = torch.empty(sum(piece.elements for _, piece in kept), dtype=parameter_type(context.spec))
        ranges = self.values.split([piece.elements for _, piece in kept])
        self.pieces = [
            ServedPiece(number, values, make, within(stretches, piece.start, piece.stop) if stretches else None)
            for (number, piece), values in zip(kept, ranges, strict=True)
        ]
        for piece in self.pieces:
            first.receive(piece.values.data, value_tag(piece.number)).wait(self.patience)

    def _receive_stretches(self, first: Link) -> list[Stretch]:
        """Which elements belong to matrices, from the worker that has the model."""
        count = torch.zeros(1, dtype=torch.int64)
        first.receive(count, WORD_TAG).wait(self.patience)
        numbers = torch.zeros(int(count), dtype=torch.int64)
        first.receive(numbers, WORD_TAG).wait(self.patience)
        return [Stretch(elements, bool(of_matrices)) for elements, of_matrices in numbers.view(-1, 2).tolist()]

    def held_bytes(self) -> dict[str, int]:
        """Bytes of the pieces and of their optimizers."""
        held = [held_bytes([piece.values], piece.optimizer) for piece in self.pieces]
        return {name: sum(part[name] for part in held) for name in ("parameters", "optimizer")}


def serving_order(context: Context) -> list[int]:
    """The workers in the order in which this process should serve them; all processes must call it together.

    A worker that has its parameters computes at once. If it does so on the server's own core, workers that are not
    served yet wait until the system takes it off again: a few milliseconds, as much as all the rest of the exchange.
    """
    places: list[Any] = [None] * context.process.world
    dist.all_gather_object(places, (context.process.place.machine, set(context.process.cores)))
    machine, cores = places[context.process.rank]
    beside = [place == machine and bool(cores & others) for place, others in places[: context.spec.workers]]
    return sorted(range(context.spec.workers), key=lambda worker: beside[worker])


class SynchronousServer:
    """Updates a piece when every worker's gradients for it are there, and sends it back to all at once."""

    def __init__(self, shard: Shard, order: list[int]) -> None:
        self._order = order
        self._shard, self._updates = shard, 0
        self._words = [torch.zeros(1, dtype=torch.int64) for _ in shard.workers]
        self._gradients = [[torch.empty_like(piece.values.data) for _ in shard.workers] for piece in shard.pieces]
        self._arriving: list[list[Any]] = [[] for _ in shard.pieces]
        self._leaving: list[list[Any]] = [[] for _ in shard.pieces]

    def serve(self) -> None:
        """One round for each step of the workers."""
        expected = [self._expect_word(worker) for worker in self._shard.workers]
        while expected := self._open_step(expected):
            for place in range(len(self._shard.pieces)):
                self._update(place)
            self._updates += 1

    def _expect_word(self, worker: int) -> Any:
        return dist.irecv(self._words[worker], worker, tag=WORD_TAG)

    def _open_step(self, expected: list[Any]) -> list[Any]:
        """Waits until all workers have begun a step, and prepares to receive what they will push."""
        for word in expected:
            word.wait(self._shard.patience)
        if all(int(word) == DONE for word in self._words):
            return []
        for place, piece in enumerate(self._shard.pieces):
            self._arriving[place] = [
                dist.irecv(self._gradients[place][worker], worker, tag=gradient_tag(piece.number))
                for worker in self._shard.workers
            ]
        return [self._expect_word(worker) for worker in self._shard.workers]

    def _update(self, place: int) -> None:
        piece, (total, *others) = self._shard.pieces[place], self._gradients[place]
        for sent in self._leaving[place]:
            sent.wait()
        for arriving in self._arriving[place]:
            arriving.wait(self._shard.patience)
        # Always in the order of the workers, so that the same run gives the same sum.
        for other in others:
            total.add_(other)
        piece.update(total)
        self._leaving[place] = [
            dist.isend(piece.values.data, worker, tag=value_tag(piece.number)) for worker in self._order
        ]

    def details(self) -> dict[str, Any]:
        """What it held and did."""
        return {"held_bytes": self._shard.held_bytes(), "updates": self._updates}

    def close(self) -> None:
        """The last parameters have arrived: workers are done only after that."""
        leave_group()
