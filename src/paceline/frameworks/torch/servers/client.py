"""A worker's side of parameter servers: gradients leave and parameters come back while the backward pass still runs.

It takes the place of an optimizer. All messages are whole tensors from and to their own memory over a gloo group.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.contract.context import Context
from paceline.costs.servers import Cut, holds_back
from paceline.frameworks.torch.flat_parameters import FlatParameters
from paceline.frameworks.torch.group import leave_group
from paceline.frameworks.torch.precision import parameter_type
from paceline.frameworks.torch.servers.links import GroupLink, Link
from paceline.frameworks.torch.training import TorchJob
from paceline.recipe import LEAST_DIMENSIONS_OF_A_MATRIX

# First number of a word: what the worker will do next, as a sum. Who looks does not train with what it gets.
DONE, PUSH, FETCH, LOOK = 0, 1, 2, 4
WORD_TAG, REPLY_TAG, GRADIENT_TAG, VALUE_TAG, TAGS = 0, 1, 0, 1, 2


def gradient_tag(piece: int) -> int:
    """The tag of the message with a piece's gradients."""
    return TAGS * (piece + 1) + GRADIENT_TAG


def value_tag(piece: int) -> int:
    """The tag of the message with a piece's parameters."""
    return TAGS * (piece + 1) + VALUE_TAG


def tells_dimensions(context: Context) -> bool:
    """Whether servers must know which elements belong to matrices: where not all parameters are decayed."""
    if context.user_model is not None and context.user_model.optimizer is not None:
        return False
    return context.spec.optimizer.weight_decay_on != "all"


class ServerClient:
    """Pushes the gradients of each backward pass and fetches the updated parameters, piece by piece."""

    # Where an optimizer has its state; here it is on the servers.
    state: dict[Any, Any] = {}

    def __init__(
        self, context: Context, module: nn.Module, device: torch.device, cut: Cut, links: Sequence[Link] | None = None
    ) -> None:
        # One for each server; usually those of the group that all processes are in.
        self.links = links or [GroupLink(context.spec.workers + server) for server in range(cut.servers)]
        self._part = 1 / context.spec.workers
        self._tells_dimensions = tells_dimensions(context)
        self.flat = FlatParameters(module, device, parameter_type(context.spec))
        self._holds_back = holds_back(context.spec)
        # Whether gradients are taken as they come: not in a pass after which more are added to them.
        self.listens = not self._holds_back
        self._pieces = cut.pieces(self.flat.elements)
        self._touched = [self.flat.touched(piece.start, piece.stop) for piece in self._pieces]
        self._pieces_of: list[list[int]] = [[] for _ in self.flat.parameters]
        for number, parameters in enumerate(self._touched):
            for parameter in parameters:
                self._pieces_of[parameter].append(number)
        self._hooks = self.flat.on_gradient(lambda parameter: self._on_gradient(parameter) if self.listens else None)
        self._deferred = device.type == "cuda"
        self._copied: list[tuple[int, torch.cuda.Event]] = []
        self._transfers: list[Any] = []
        self._word = torch.zeros(1, dtype=torch.int64)
        self._scale, self._add = 1.0, False
        self._pushing, self._fetching = False, False
        self._waiting: set[int] = set()
        self._missing: list[int] = []

    def send_initial_parameters(self) -> None:
        """Gives every server the parameters to start from; only the first worker calls it."""
        self.send_word([self.flat.elements])
        if self._tells_dimensions:
            matrices = [
                (parameter.numel(), parameter.ndim >= LEAST_DIMENSIONS_OF_A_MATRIX)
                for parameter in self.flat.parameters
            ]
            self.finish()
            self.send_word([2 * len(matrices)])
            self.finish()
            self.send_word([int(number) for pair in matrices for number in pair])
        self._transfers += [
            self.links[piece.server].send(self.flat.landing[piece.start : piece.stop], value_tag(number))
            for number, piece in enumerate(self._pieces)
        ]
        self.finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Called before the forward pass, with which a step opens unless its gradients are held back."""
        self.finish()
        for parameter in self.flat.parameters:
            parameter.grad = None
        if not self._holds_back:
            self.open_step()

    def step(self) -> None:
        """Called after the backward pass, unless the step is skipped."""
        if self._holds_back:
            self.open_step()
        self.end()

    def open_step(self) -> None:
        """Each worker's gradients will be pushed as its part of the mean."""
        self.begin(push=True, fetch=True, scale=self._part, add=False)

    @contextmanager
    def adding(self, last: bool) -> Iterator[None]:
        """Around one of several passes whose gradients are added up; they leave in the last."""
        self.listens = last and not self._holds_back
        yield
        self.listens = not self._holds_back

    def begin(self, *, push: bool, fetch: bool, scale: float, add: bool) -> None:
        """Says what is to become of the gradients of a step."""
        self.finish()
        self._pushing, self._fetching, self._scale, self._add = push, fetch and push, scale, add
        self._waiting = set(range(len(self.flat.parameters)))
        self._missing = [len(touched) for touched in self._touched]
        if push:
            self.send_word([PUSH + FETCH * fetch])

    def send_word(self, word: list[int]) -> None:
        """Sends the same short message to every server: what this worker will do next."""
        self._word = torch.tensor(word)
        self._transfers += [link.send(self._word, WORD_TAG) for link in self.links]

    def _on_gradient(self, parameter: int) -> None:
        """Keeps a parameter's gradient and sends the pieces that are complete with it."""
        self.flat.keep_gradient(parameter, self._scale, self._add)
        self._waiting.discard(parameter)
        for piece in self._pieces_of[parameter]:
            self._missing[piece] -= 1
            if not self._missing[piece] and self._pushing:
                self._send_gradients(piece)

    def _send_gradients(self, piece: int) -> None:
        if self._deferred:
            # The GPU is still to compute and copy it; `end` sends it once it has.
            self._copied.append((piece, torch.cuda.current_stream().record_event()))
        else:
            self._exchange(piece)

    def _exchange(self, number: int) -> None:
        piece = self._pieces[number]
        if self._fetching:
            self._receive(number)
        gradients = self.flat.gradients[piece.start : piece.stop]
        self._transfers.append(self.links[piece.server].send(gradients, gradient_tag(number)))

    def _receive(self, number: int) -> None:
        piece = self._pieces[number]
        values = self.flat.landing[piece.start : piece.stop]
        self._transfers.append(self.links[piece.server].receive(values, value_tag(number)))

    def end(self) -> None:
        """After a backward pass: parameters without a gradient count as zero, and what a GPU copied out leaves."""
        for parameter in list(self._waiting):
            self._on_gradient(parameter)
        for piece, copied in self._copied:
            copied.synchronize()
            self._exchange(piece)
        self._copied.clear()

    def request_parameters(self, wish: int = FETCH) -> None:
        """Asks the servers for their parameters as they are; `finish` waits for them."""
        self.send_word([wish])
        for number in range(len(self._pieces)):
            self._receive(number)
        self._fetching = True

    def finish(self) -> None:
        """Waits for all transfers, so that parameters are new and buffers free."""
        for work in self._transfers:
            work.wait()
        self._transfers.clear()
        if self._fetching:
            self.flat.land()
            self._fetching = False

    def close(self) -> None:
        """Tells every server that this worker is done."""
        self.finish()
        self.send_word([DONE])
        self.finish()
        for hook in self._hooks:
            hook.remove()


class ServedJob(TorchJob):
    """The usual training loop, with servers in the place of its optimizer."""

    # What the servers are sent is the mean of all workers' gradients, so all of them skip the same step.
    has_parts = True

    def __init__(self, context: Context, module: nn.Module, device: torch.device, client: ServerClient) -> None:
        def leave() -> None:
            client.close()
            if dist.is_initialized():
                leave_group()

        barrier: Callable[[], Any] | None = None
        if dist.is_initialized():
            # Servers have no part in it and do not wait for it.
            self.group = dist.new_group(list(range(context.spec.workers)), use_local_synchronization=True)
            barrier = partial(dist.barrier, group=self.group)
        super().__init__(context, module, device, client, barrier, leave)
        self._client = client
        if context.process.rank == 0:
            client.send_initial_parameters()

    def _sending(self, last: bool) -> AbstractContextManager[Any]:
        return self._client.adding(last)

    def wait(self) -> None:
        """Also waits for the parameters that are still coming in."""
        super().wait()
        self._client.finish()

    def close(self) -> None:
        """Leaves no reference to the module behind."""
        del self._client
        super().close()
