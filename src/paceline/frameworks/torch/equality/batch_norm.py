"""Batch norms over the samples of all workers: PyTorch's own on GPUs, and the same for CPUs, where it has none.

Ioffe and Szegedy, "Batch Normalization", 2015. Each pass exchanges two numbers and a count for each channel forward,
and two numbers back.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(module: nn.Module) -> list[str]:
    """Names of the batch norms that take statistics of the samples they are given while they train."""
    return [name for name, child in module.named_modules() if isinstance(child, _BatchNorm | nn.SyncBatchNorm)]


def synchronise(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with batch norms over the samples of all workers; their parameters keep their names."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    for child in module.modules():
        if isinstance(child, _BatchNorm):
            child.forward = partial(_normalise, child, child.forward)
    return module


def _normalise(norm: Any, usual: Any, values: Tensor) -> Tensor:
    if not norm.training:
        result: Tensor = usual(values)
        return result
    output, mean, variance, count = _OverAllWorkers.apply(values, norm.weight, norm.bias, norm.eps)
    if norm.track_running_stats and norm.running_mean is not None:
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
            share = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
            unbiased = variance * (count / (count - 1).clamp_min(1.0))
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
    return output


class _OverAllWorkers(torch.autograd.Function):
    """Normalised values, and mean, variance and number of all workers' values of each channel."""

    @staticmethod
    def forward(context: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        rows = _rows(values)
        count = torch.full((1,), float(len(rows)), dtype=rows.dtype)
        mean = rows.mean(0) if len(rows) else rows.new_zeros(rows.shape[1])
        squares = (rows - mean).square().sum(0)
        parts = [torch.empty(1 + 2 * len(mean), dtype=rows.dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.cat([count, mean, squares]))
        counts, means, sums = torch.stack(parts).split([1, len(mean), len(mean)], 1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        # Chan, Golub and LeVeque, 1979: sums of squares around each worker's mean, put together.
        variance = (sums + counts * (means - mean).square()).sum(0) / total
        deviation = (variance + eps).rsqrt()
        normalised = (values - _along(mean, values)) * _along(deviation, values)
        context.save_for_backward(normalised, weight, deviation, total)
        output = normalised if weight is None else normalised * _along(weight, values)
        output = output if bias is None else output + _along(bias, values)
        context.mark_non_differentiable(mean, variance, total)
        return output.to(values.dtype), mean, variance, total

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_of_statistics: Any) -> Any:
        normalised, weight, deviation, total = context.saved_tensors
        rows, normal = _rows(gradient), _rows(normalised)
        of_bias, of_weight = rows.sum(0), (rows * normal).sum(0)
        sums = torch.cat([of_bias, of_weight])
        dist.all_reduce(sums)
        first, second = (sums / total).split(len(of_bias))
        back = gradient - _along(first, gradient) - normalised * _along(second, gradient)
        factor = deviation if weight is None else deviation * weight
        # Gradients of weight and bias are this worker's own, and averaged with all others.
        return (
            (back * _along(factor, gradient)).to(gradient.dtype),
            None if weight is None else of_weight.to(weight.dtype),
            None if weight is None else of_bias.to(weight.dtype),
            None,
        )


def _rows(values: Tensor) -> Tensor:
    """The values as a matrix with a column for each channel, in single precision."""
    return values.float().movedim(1, -1).reshape(-1, values.shape[1])


def _along(channels: Tensor, values: Tensor) -> Tensor:
    return channels.reshape(1, -1, *[1] * (values.ndim - 2))
