"""RMS norm as the single kernel that it is on a GPU: on the meta device PyTorch takes it apart and keeps much more."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SPACE = "paceline_trace"
_library = torch.library.Library(SPACE, "DEF")
_library.define("_fused_rms_norm(Tensor input, Tensor? weight, int dimensions) -> (Tensor, Tensor)")
_library.define(
    "_fused_rms_norm_backward(Tensor gradient, Tensor input, Tensor root, Tensor? weight, int dimensions) -> Tensor[]"
)


def _forward(values: Tensor, _weight: Tensor | None, dimensions: int) -> tuple[Tensor, Tensor]:
    """The result, and one over the root of the mean square of each vector, in single precision."""
    kept = values.shape[: values.ndim - dimensions]
    return torch.empty_like(values), values.new_empty((*kept, *(1,) * dimensions), dtype=torch.float32)


def _backward(gradient: Tensor, values: Tensor, _root: Tensor, weight: Tensor | None, _dimensions: int) -> list[Tensor]:
    gradients = [torch.empty_like(values, memory_format=torch.contiguous_format)]
    return gradients if weight is None else [*gradients, torch.empty_like(weight)]


_library.impl("_fused_rms_norm", _forward, "Meta")
_library.impl("_fused_rms_norm_backward", _backward, "Meta")


class FusedRmsNorm(torch.autograd.Function):
    """Keeps its input and the roots."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor | None, dimensions: int) -> Tensor:
        """The norm of the last dimensions."""
        result, root = torch.ops.paceline_trace._fused_rms_norm(values, weight, dimensions)
        ctx.save_for_backward(values, weight, root)
        ctx.dimensions = dimensions
        return result

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Gradients of the input and of the weight."""
        values, weight, root = ctx.saved_tensors
        gradients = torch.ops.paceline_trace._fused_rms_norm_backward(
            gradient.contiguous(), values, root, weight, ctx.dimensions
        )
        return gradients[0], gradients[1] if weight is not None else None, None


def fused_rms_norm(values: Tensor, shape: Any, weight: Tensor | None) -> Tensor:
    """What a GPU's kernel gives."""
    result: Tensor = FusedRmsNorm.apply(values, weight, len(shape))
    return result
