"""Squared norms of gradients over a part of the batch and over all of it, from passes that are made anyway.

With DistributedDataParallel the part is a worker's share, looked at in the bucket before it is averaged. On one worker
it is the first of several passes.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.contract.job import GradientSquares
from paceline.frameworks.torch.training import TorchJob


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
        self._by_bucket = isinstance(self._module, DistributedDataParallel) and spec.workers > 1
        small = spec.samples_per_step // (spec.workers if self._by_bucket else spec.accumulation)
        self._meter, self._pass_number = NoiseMeter(small, spec.samples_per_step), 0
        if self._by_bucket:
            self._module.register_comm_hook(self._meter, average_and_measure)

    def _pass(self, inputs: Tensor, targets: Tensor, passes: int) -> Tensor:
        loss = super()._pass(inputs, targets, passes)
        if self._pass_number == 0 and not self._by_bucket:
            # Of the mean over all passes, the first has added its share.
            self._meter.add_part(squared_norm(self._bare_module()) * passes**2)
        self._pass_number += 1
        return loss

    def _update(self, loss: Tensor) -> None:
        factor = 1.0 if self._scale is None else self._scale.factor
        self._meter.end_step(squared_norm(self._bare_module()), factor)
        self._pass_number = 0
        super()._update(loss)

    def gradient_squares(self) -> GradientSquares:
        """The squared norms of the epoch."""
        return self._meter.take()


def squared_norm(module: torch.nn.Module) -> Tensor:
    """The squared norm of all gradients together."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).square().sum()


def average_and_measure(meter: NoiseMeter, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Averages a bucket over all workers, as DDP does by itself, and notes the norm of this worker's share of it."""
    gradients = bucket.buffer()
    meter.add_part(torch.dot(gradients, gradients))
    gradients.div_(dist.get_world_size())
    future = dist.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def with_noise(kind: type[TorchJob], measures: bool) -> type[TorchJob]:
    """The kind of job, or one like it that also measures the noise of its gradients."""
    return type(f"Measuring{kind.__name__}", (MeasuresNoise, kind), {}) if measures else kind
