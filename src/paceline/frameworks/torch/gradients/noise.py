"""Squared norms of gradients over a part of the batch and over all of it, from passes that are made anyway.

With DistributedDataParallel the part is a worker's share, looked at before it is averaged. On one worker it is the
first of several passes. Looking takes time: as many steps are measured as keep it below one per cent.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.contract.job import GradientSquares
from paceline.frameworks.torch.training import TorchJob

# Steps from one that is measured to the next, at least; and the part of the time that looking may take. What it reads
# takes the place of other data in the caches, which costs the rest of the step up to as much again.
LEAST_STEPS_BETWEEN, LOOKING_SHARE = 3, 0.004
# After so many steps it is known how long they take, and how long looking at their gradients does.
TIMED_STEPS = 24


class Rhythm:
    """Which steps are measured: every third at first, then as few as the time that looking takes asks for."""

    def __init__(self) -> None:
        self.steps_between = LEAST_STEPS_BETWEEN
        self._step_number, self._looking = 0, 0.0
        self._looks: list[float] = []
        self._others: list[float] = []

    @property
    def measures(self) -> bool:
        """Whether the step that is under way is measured."""
        return not self._step_number % self.steps_between

    def add_look(self, seconds: float) -> None:
        """A part of the looking in the step that is under way."""
        self._looking += seconds

    def end_step(self, seconds: float) -> bool:
        """Counts a step with what it took; gives whether it is time to choose the rhythm."""
        if self._step_number < TIMED_STEPS:
            if self.measures:
                self._looks.append(self._looking)
            else:
                self._others.append(seconds)
        self._step_number, self._looking = self._step_number + 1, 0.0
        return self._step_number == TIMED_STEPS

    def wanted(self) -> int:
        """Steps from one that is measured to the next, by the times of this process; the first ones are slow."""
        share = median(self._looks[1:]) / max(median(self._others[1:]), 1e-9)
        return max(LEAST_STEPS_BETWEEN, math.ceil(share / LOOKING_SHARE))


class NoiseMeter:
    """The squared norms of an epoch, as tensors on the device until they are asked for: nothing waits for them."""

    def __init__(self, small_batch: int, big_batch: int) -> None:
        self._batches = small_batch, big_batch
        self._running: list[Tensor] = []
        self._small: list[Tensor] = []
        self._big: list[Tensor] = []
        self._factors: list[float] = []

    def add_part(self, square: Tensor) -> None:
        """A part of the squared norm over the small batch of the step that is under way."""
        self._running.append(square)

    def end_step(self, big_square: Tensor, loss_factor: float) -> None:
        """The squared norm over the whole batch, and what the loss was multiplied by."""
        self._small.append(torch.stack(self._running).sum())
        self._big.append(big_square)
        self._factors.append(loss_factor)
        self._running.clear()

    def take(self) -> GradientSquares:
        """The squared norms of all steps since the last call, without steps whose gradients overflowed."""
        small, big = ([float(square) for square in squares] for squares in (self._small, self._big))
        pairs = [
            (part / factor**2, whole / factor**2)
            for part, whole, factor in zip(small, big, self._factors, strict=True)
            if math.isfinite(part) and math.isfinite(whole)
        ]
        self._small, self._big, self._factors = [], [], []
        return GradientSquares(*self._batches, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


class MeasuresNoise(TorchJob):
    """A job that also measures what the gradient noise scale is made of."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        spec = self._context.spec
        self._by_worker = isinstance(self._module, DistributedDataParallel) and spec.workers > 1
        small = spec.samples_per_step // (spec.workers if self._by_worker else spec.accumulation)
        self._meter, self._rhythm, self._pass_number = NoiseMeter(small, spec.samples_per_step), Rhythm(), 0
        # On cores what other programs do meanwhile does not count, nor for a look what other threads send.
        on_cores = self._device.type == "cpu"
        self._seconds, self._look_clock = (process_time, thread_time) if on_cores else (perf_counter, perf_counter)
        self._watched = [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def _look(self, parameter: Tensor) -> None:
        """Notes the norm of a gradient when this worker has added its last pass to it; DDP averages it only then."""
        is_last = self._pass_number == self._context.spec.accumulation - 1
        if is_last and parameter.grad is not None:
            began = self._look_clock()
            self._meter.add_part(torch.linalg.vector_norm(parameter.grad, dtype=torch.float32).square())
            self._rhythm.add_look(self._look_clock() - began)

    def _pass(self, inputs: Tensor, targets: Tensor, passes: int) -> Tensor:
        loss = super()._pass(inputs, targets, passes)
        if self._rhythm.measures and self._pass_number == 0 and not self._by_worker:
            began = self._look_clock()
            # Of the mean over all passes, the first has added its share.
            self._meter.add_part(squared_norm(self._watched) * passes**2)
            self._rhythm.add_look(self._look_clock() - began)
        self._pass_number += 1
        return loss

    def _update(self, loss: Tensor) -> None:
        if self._rhythm.measures:
            began = self._look_clock()
            factor = 1.0 if self._scale is None else self._scale.factor
            self._meter.end_step(squared_norm(self._watched), factor)
            self._rhythm.add_look(self._look_clock() - began)
        self._pass_number = 0
        super()._update(loss)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Around a step: gradients of workers are looked at as they come, and only where it is measured."""
        if not self._by_worker or not self._rhythm.measures:
            yield
            return
        began = self._look_clock()
        hooks = [parameter.register_post_accumulate_grad_hook(self._look) for parameter in self._watched]
        self._rhythm.add_look(self._look_clock() - began)
        yield
        for hook in hooks:
            hook.remove()

    def train_on(self, rows: Tensor) -> Tensor:
        """One optimizer step; when enough of them are timed, all workers choose the same rhythm."""
        began = self._seconds()
        with self._watching():
            loss = super().train_on(rows)
        if self._rhythm.end_step(self._seconds() - began):
            wanted = torch.tensor(self._rhythm.wanted(), device=self._device)
            if self._by_worker:
                dist.all_reduce(wanted, dist.ReduceOp.MAX)
            self._rhythm.steps_between = int(wanted)
        return loss

    def gradient_squares(self) -> GradientSquares:
        """The squared norms of the epoch's measured steps."""
        return self._meter.take()


def squared_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The squared norm of all gradients together, of those in two bytes as well in single precision."""
    gradients = [parameter.grad.float() for parameter in parameters if parameter.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).square().sum()


def with_noise(kind: type[TorchJob], measures: bool) -> type[TorchJob]:
    """The kind of job, or one like it that also measures the noise of its gradients."""
    return type(f"Measuring{kind.__name__}", (MeasuresNoise, kind), {}) if measures else kind
