"""A call of PyTorch's dispatcher as text, and the text as a call that a device can be asked to repeat.

The text has every argument: of tensors their type, shape and strides, because kernels for other strides are others.
Tensors come back with random numbers; those that are indices with numbers that are in range.
"""

import ast
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.costs.operations import OperationNumbers
from paceline.frameworks.torch.trace.fused_norm import SPACE

# Keys of what is no plain number, text or list.
_TENSOR, _SAME, _DEVICE, _CONSTANT, _FLOAT = "tensor", "same", "device", "constant", "float"
_EPSILON = 1e-5
# Where indices are in range: by operation, from its arguments as they are in the text.
_RANGES: dict[str, Callable[[list[Any]], int]] = {
    "embedding": lambda arguments: _shape(arguments[0])[0],
    "embedding_dense_backward": lambda arguments: int(arguments[2]),
    "nll_loss_forward": lambda arguments: _shape(arguments[0])[1],
    "nll_loss_backward": lambda arguments: _shape(arguments[1])[1],
    "index_select": lambda arguments: _shape(arguments[0])[arguments[1]],
    "gather": lambda arguments: _shape(arguments[0])[arguments[1]],
    "max_pool2d_with_indices_backward": lambda arguments: math.prod(_shape(arguments[1])[2:]),
}
Call = Callable[[], Any]


def text_of_call(func: Any, args: Any, kwargs: dict[str, Any], numbers: OperationNumbers) -> str:
    """The call; `numbers` say whether products of single precision are rounded, which no argument tells."""
    name, overload = func._schema.name, func._schema.overload_name
    if name.startswith(f"{SPACE}::"):
        name, args = _kernel_of_norm(name.partition("::")[2], args)
    known: list[Tensor] = []
    values = [_described(value, known) for value in args]
    named = {key: _described(value, known) for key, value in kwargs.items()}
    return repr((f"{name}.{overload or 'default'}", numbers, values, named))


def _kernel_of_norm(name: str, args: Any) -> tuple[str, tuple[Any, ...]]:
    """The kernel of a GPU that the norm of a trace stands for."""
    *tensors, dimensions = args
    if name == "_fused_rms_norm":
        values, weight = tensors
        return f"aten::{name}", (values, list(values.shape[-dimensions:]), weight, _EPSILON)
    gradient, values, root, weight = tensors
    shape = list(values.shape[-dimensions:])
    return f"aten::{name}", (gradient, values, shape, root, weight, [True, weight is not None])


def _described(value: Any, known: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        for place, tensor in enumerate(known):
            if tensor is value:
                return {_SAME: place}
        known.append(value)
        return {_TENSOR: (str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))}
    if isinstance(value, list | tuple):
        return [_described(item, known) for item in value]
    return None if isinstance(value, torch.layout) else _described_constant(value)


def _described_constant(value: Any) -> Any:
    if isinstance(value, torch.device):
        return {_DEVICE: ""}
    if isinstance(value, torch.dtype | torch.memory_format):
        return {_CONSTANT: str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    return value


def call_from_text(text: str, device: torch.device) -> Call:
    """The call on this device, with its tensors made beforehand."""
    name, numbers, values, named = ast.literal_eval(text)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = numbers != "fp32"
    base, _, overload = name.removeprefix("aten::").partition(".")
    arguments = _Arguments(device, _RANGES[base](values) if base in _RANGES else 1)
    args = [arguments.value(value) for value in values]
    kwargs = {key: arguments.value(value) for key, value in named.items()}
    if base in ("native_batch_norm", "_native_batch_norm_legit", "native_batch_norm_backward"):
        return _batch_norm(args, backward=base.endswith("backward"))
    operation = getattr(getattr(torch.ops.aten, base), overload)

    def call() -> Any:
        with torch.no_grad():
            return operation(*args, **kwargs)

    return call


def _batch_norm(args: list[Any], backward: bool) -> Call:
    """A batch norm as modules ask for it: which library's kernel it is, PyTorch decides by type and order."""
    if not backward:
        images, weight, bias, mean, variance = args[:5]
        return lambda: functional.batch_norm(images, mean, variance, weight, bias, True)
    gradient, images, weight = args[:3]
    images.requires_grad_()
    parameters = [images] if weight is None else [images, weight.requires_grad_()]
    normed = functional.batch_norm(images, None, None, weight, None, True)
    return lambda: torch.autograd.grad(normed, parameters, gradient, retain_graph=True)


class _Arguments:
    """Makes the arguments of one call."""

    def __init__(self, device: torch.device, indices_below: int) -> None:
        self._device, self._below = device, max(1, indices_below)
        self._tensors: list[Tensor] = []

    def value(self, described: Any) -> Any:
        """The argument that the text describes."""
        if isinstance(described, list):
            return [self.value(item) for item in described]
        if not isinstance(described, dict):
            return described
        ((kind, value),) = described.items()
        if kind == _TENSOR:
            self._tensors.append(self._tensor(getattr(torch, value[0]), *value[1:]))
            return self._tensors[-1]
        if kind == _SAME:
            return self._tensors[value]
        if kind == _DEVICE:
            return self._device
        return float(value) if kind == _FLOAT else getattr(torch, value)

    def _tensor(self, kind: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if 0 in shape:
            return torch.empty(shape, dtype=kind, device=self._device)
        if kind.is_floating_point:
            # Zeros take less power than numbers, and then the clock stays higher.
            numbers = torch.randn(elements, device=self._device, dtype=kind)
        else:
            most = 2 if kind == torch.bool else self._below
            numbers = torch.randint(0, most, (elements,), device=self._device).to(kind)
        return numbers.as_strided(shape, strides)


def _shape(described: Any) -> tuple[int, ...]:
    return tuple(described[_TENSOR][1])
