"""One call of PyTorch's dispatcher ─► an `Operation`: its kind, its numbers, its shape, its work and its bytes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.costs.operations import Operation, OperationKind, OperationNumbers
from paceline.frameworks.torch.trace.cuda_on_meta import has_channels_fastest
from paceline.frameworks.torch.trace.fused_norm import SPACE
from paceline.frameworks.torch.trace.fused_recurrent import RECURRENT_LAYER, recurrent_layer

_NUMBERS: dict[torch.dtype, OperationNumbers] = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
# A gradient of attention multiplies five matrices where the forward pass multiplies two (Dao et al., 2022).
ATTENTION_BACKWARD = 2.5
# Adding, as part of a multiplication, counts as an operation.
MULTIPLY_ADD = 2
COPIES, REORDERING = ("clone", "copy_"), "contiguous"
CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
GROUP_NORMS = ("aten::native_group_norm", "aten::native_group_norm_backward")
# Products by where their two factors are among the arguments.
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


def operation_of(
    func: Any, args: Any, read: list[Tensor], outputs: list[Tensor], backward: bool, update: bool, tf32: bool
) -> Operation | None:
    """The operation; None where nothing is computed, such as for another view of the same numbers."""
    name: str = func._schema.name
    space, _, short = name.partition("::")
    if space not in ("aten", SPACE) or _only_views(func, read, outputs):
        return None
    moved = float(sum(_bytes(tensor) for tensor in _distinct([*read, *outputs])))
    if update:
        numbers = sum(tensor.numel() for tensor in (args[0] if isinstance(args[0], list | tuple) else outputs))
        return Operation("update", "fp32", (numbers,), float(numbers), moved, short)
    if name.startswith(RECURRENT_LAYER):
        return recurrent_layer(name, args, _numbers("recurrent", read, outputs, tf32))
    kind, shape, flops = _work(func, args, read, outputs)
    if short in COPIES and read and outputs and _fastest(read[0]) != _fastest(outputs[0]):
        short = REORDERING
    sums_rows = kind == "product" and backward and _is_transposed(args[_PRODUCTS[name]])
    numbers_of = _numbers(kind, read, outputs, tf32)
    return Operation(kind, numbers_of, shape, flops, moved, short, backward=backward, sums_rows=sums_rows)


def unseen_operations(name: str, args: Any, outputs: list[Tensor], backward: bool) -> list[Operation]:
    """What CUDA's kernels do beside the call that the dispatcher sees: copies into another order, and biases.

    Norms over groups want images channel by channel; convolutions whose weights have channels fastest want them so.
    What goes through tensors of two orders at once reads one of them as a copy into the other order would.
    """
    tensors = [value for value in args if isinstance(value, Tensor) and value.ndim > 1]
    images = [tensor for tensor in tensors if _is_image(tensor)]
    moved: list[Tensor] = []
    if name in GROUP_NORMS:
        moved = [image for image in images if not image.is_contiguous()]
    elif name in CONVOLUTIONS:
        if any(map(has_channels_fastest, images)):
            moved = [image for image in images if not image.is_contiguous(memory_format=torch.channels_last)]
    elif name not in _PRODUCTS and len({tensor.shape for tensor in tensors}) == 1:
        usual = _fastest(tensors[0])
        moved = [tensor for tensor in tensors if _fastest(tensor) not in (usual, None)][:1]
    return [_pass_over(image, 2, REORDERING, backward) for image in moved] + _bias(name, args, outputs)


def _bias(name: str, args: Any, outputs: list[Tensor]) -> list[Operation]:
    """The bias of a convolution: an addition over its output, and a sum in the backward pass."""
    if name == CONVOLUTIONS[0] and args[2] is not None:
        return [_pass_over(outputs[0], 2, "add", backward=False)]
    if name == CONVOLUTIONS[1] and args[-1][2]:
        return [_pass_over(args[0], 1, "sum", backward=True)]
    return []


def _pass_over(tensor: Tensor, arrays: int, name: str, backward: bool) -> Operation:
    moved = float(arrays * tensor.numel() * tensor.element_size())
    numbers = _NUMBERS.get(tensor.dtype, "fp32")
    return Operation("memory", numbers, (tensor.numel(),), float(tensor.numel()), moved, name, backward=backward)


def _fastest(tensor: Tensor) -> int | None:
    """The dimension along which numbers lie side by side; None where one number stands for all along some."""
    strides = [(stride, dimension) for dimension, stride in enumerate(tensor.stride()) if tensor.shape[dimension] > 1]
    return min(strides)[1] if strides and min(strides)[0] > 0 else None


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4


def as_called(operation: Operation, named: Mapping[str, Any]) -> Operation:
    """With a name of its own where what it is called with makes it another one: a GELU by tanh."""
    if named.get("approximate") != "tanh":
        return operation
    return replace(operation, name=operation.name.replace("gelu", "gelu_tanh"))


def _is_transposed(factor: Tensor) -> bool:
    """Whether the rows of a matrix lie side by side: it is the other way round in memory."""
    return bool(factor.ndim == 2 and factor.stride(0) == 1 and factor.shape[0] > 1)


def _work(
    func: Any, args: Any, read: list[Tensor], outputs: list[Tensor]
) -> tuple[OperationKind, tuple[int, ...], float]:
    name: str = func._schema.name
    if name in _PRODUCTS:
        first, second = args[_PRODUCTS[name]], args[_PRODUCTS[name] + 1]
        batch = first.shape[0] if first.ndim == 3 else 1
        shape = (batch, first.shape[-2], second.shape[-1], first.shape[-1])
        return "product", shape, float(MULTIPLY_ADD * math.prod(shape))
    if name in CONVOLUTIONS:
        return _convolution(name, args, outputs)
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return _attention(args, "backward" in name, _is_causal(func, args))
    numbers = max((tensor.numel() for tensor in (*read, *outputs)), default=0)
    return "memory", (numbers,), float(numbers)


def _convolution(name: str, args: Any, outputs: list[Tensor]) -> tuple[OperationKind, tuple[int, ...], float]:
    back = name.endswith("backward")
    # (gradient, input, weight, ...) or (input, weight, ...); then stride, and near the end groups.
    data, weight = args[1:3] if back else args[0:2]
    result = args[0] if back else outputs[0]
    stride, transposed, groups = (args[4], args[7], args[9]) if back else (args[3], args[6], args[8])
    if transposed:
        # It is the gradient of a convolution from its result to its input, and multiplies as much as that does.
        data, result = result, data
    two = (1, 1, *data.shape[2:])[-2:], (1, 1, *weight.shape[2:])[-2:]
    shape = (data.shape[0], data.shape[1], *two[0], result.shape[1], *two[1], stride[-1], groups)
    flops = float(MULTIPLY_ADD * result.numel() * math.prod(weight.shape[1:]))
    return "convolution", shape, flops * (sum(args[-1][:2]) if back else 1)


def _is_causal(func: Any, args: Any) -> bool:
    """Whether attention is; what is left out at the end is as usual, which is not."""
    names = [argument.name for argument in func._schema.arguments]
    return "is_causal" in names[: len(args)] and bool(args[names.index("is_causal")])


def _attention(args: Any, back: bool, causal: bool) -> tuple[OperationKind, tuple[int, ...], float]:
    queries, keys, values = args[1:4] if back else args[0:3]
    samples, heads, length, width = queries.shape
    shape = (samples, heads, keys.shape[1], length, keys.shape[2], width, int(causal))
    scores = samples * heads * length * keys.shape[2]
    flops = MULTIPLY_ADD * scores * (width + values.shape[-1]) / (2 if causal else 1)
    return "attention", shape, flops * (ATTENTION_BACKWARD if back else 1)


def _numbers(kind: OperationKind, read: list[Tensor], outputs: list[Tensor], tf32: bool) -> OperationNumbers:
    for tensor in (*outputs, *read):
        if tensor.dtype in _NUMBERS:
            numbers = _NUMBERS[tensor.dtype]
            multiplies = kind in ("product", "convolution", "attention", "recurrent")
            return "tf32" if numbers == "fp32" and tf32 and multiplies else numbers
    return "fp32"


def _only_views(func: Any, read: list[Tensor], outputs: list[Tensor]) -> bool:
    if func._schema.is_mutable:
        return False
    inputs = {tensor.untyped_storage()._cdata for tensor in read}
    return bool(outputs) and all(tensor.untyped_storage()._cdata in inputs for tensor in outputs)


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({(tensor.untyped_storage()._cdata, tensor.storage_offset()): tensor for tensor in tensors}.values())


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor in memory; one that is expanded beyond its storage is read once."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))
