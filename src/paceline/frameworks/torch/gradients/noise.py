"""Squared norms of gradients over a part of the batch and over all of it, from passes that are made anyway.

With DistributedDataParallel the part is a worker's share, looked at before it is averaged. On one worker it is the
first of several passes.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.contract.job import GradientSquares
from paceline.frameworks.torch.training import TorchJob

# Steps from one that is measured to the next: reading all gradients twice is 1 to 2 % of a step of the large CNN.
STEPS_BETWEEN = 3


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
        self._meter, self._pass_number, self._step_number = NoiseMeter(small, spec.samples_per_step), 0, 0
        if self._by_worker:
            for parameter in self._module.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._look)

    @property
    def _measures(self) -> bool:
        return not self._step_number % STEPS_BETWEEN

    def _look(self, parameter: Tensor) -> None:
        """Notes the norm of a gradient when this worker has added its last pass to it; DDP averages it only then."""
        is_last = self._pass_number == self._context.spec.accumulation - 1
        if self._measures and is_last and parameter.grad is not None:
            self._meter.add_part(torch.linalg.vector_norm(parameter.grad, dtype=torch.float32).square())

    def _pass(self, inputs: Tensor, targets: Tensor, passes: int) -> Tensor:
        loss = super()._pass(inputs, targets, passes)
        if self._measures and self._pass_number == 0 and not self._by_worker:
            # Of the mean over all passes, the first has added its share.
            self._meter.add_part(squared_norm(self._bare_module()) * passes**2)
        self._pass_number += 1
        return loss

    def _update(self, loss: Tensor) -> None:
        if self._measures:
            factor = 1.0 if self._scale is None else self._scale.factor
            self._meter.end_step(squared_norm(self._bare_module()), factor)
        self._pass_number, self._step_number = 0, self._step_number + 1
        super()._update(loss)

    def gradient_squares(self) -> GradientSquares:
        """The squared norms of the epoch; the next one begins with a step that is measured."""
        self._step_number = 0
        return self._meter.take()


def squared_norm(module: torch.nn.Module) -> Tensor:
    """The squared norm of all gradients together, of those in two bytes as well in single precision."""
    gradients = [parameter.grad.float() for parameter in module.parameters() if parameter.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).square().sum()


def with_noise(kind: type[TorchJob], measures: bool) -> type[TorchJob]:
    """The kind of job, or one like it that also measures the noise of its gradients."""
    return type(f"Measuring{kind.__name__}", (MeasuresNoise, kind), {}) if measures else kind
