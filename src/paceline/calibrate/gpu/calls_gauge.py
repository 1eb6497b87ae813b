"""An operation ─► a call of PyTorch that makes the device do it, on tensors of its own."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from paceline.calibrate.core_cases import CORE_NAMES
from paceline.calibrate.gpu.cases import CAST, MEMORY_NAMES, arrays_of
from paceline.costs.operations import UPDATE_BYTES, Operation, OperationNumbers
from paceline.frameworks.torch.optimizer import make_optimizer
from paceline.frameworks.torch.trace.calls import Call, call_from_text
from paceline.spec import Optimizer

TYPES: dict[OperationNumbers, torch.dtype] = {
    "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip
# Of memory-bound operations that know rows: the length of one; of images, the side.
ROW, SIDE = 1024, 32
NORM_GROUPS = 32
# An update is of so many arrays at most; on cores, which take their time for each, of one for so many parameters.
ARRAYS, PARAMETERS_OF_AN_ARRAY = 64, 40_000


def call_of(operation: Operation, device: torch.device) -> Call:
    """The call, with what it needs made beforehand: the very one of a model where a trace has kept it."""
    if operation.call:
        return call_from_text(operation.call, device)
    # Rounds products of single precision, or does not.
    rounded = operation.numbers != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    make: dict[str, Callable[[Operation, torch.device], Call]] = {
        "product": _product, "convolution": _convolution, "attention": _attention, "recurrent": _recurrent,
        "memory": _memory, "update": _update,
    }  # fmt: skip
    return make[operation.kind](operation, device)


def _product(operation: Operation, device: torch.device) -> Call:
    batch, rows, columns, inner = operation.shape
    kind = TYPES[operation.numbers]
    if batch > 1:
        left, right = _random((batch, rows, inner), device, kind), _random((batch, columns, inner), device, kind)
        return lambda: torch.bmm(left, right.transpose(1, 2))
    if operation.sums_rows:
        left, right = _random((inner, rows), device, kind), _random((inner, columns), device, kind)
        return lambda: torch.mm(left.t(), right)
    left = _random((rows, inner), device, kind)
    if operation.backward:
        right = _random((inner, columns), device, kind)
        return lambda: torch.mm(left, right)
    right = _random((columns, inner), device, kind)
    return lambda: torch.mm(left, right.t())


def _convolution(operation: Operation, device: torch.device) -> Call:
    samples, inputs, height, width, outputs, kernel_height, kernel_width, stride, groups = operation.shape
    kind, padding = TYPES[operation.numbers], [kernel_height // 2, kernel_width // 2]
    if stride == kernel_height:
        padding = [0, 0]
    images = _random((samples, inputs, height, width), device, kind).to(memory_format=torch.channels_last)
    weights = _random((outputs, inputs // groups, kernel_height, kernel_width), device, kind)
    weights = weights.to(memory_format=torch.channels_last)
    if not operation.backward:
        return lambda: functional.conv2d(images, weights, None, stride, padding, 1, groups)
    output = functional.conv2d(images, weights, None, stride, padding, 1, groups)
    gradient = torch.randn_like(output)
    # As many operations as a forward pass are the gradient of weights alone: the first layer's.
    only_weights = operation.flops < 1.5 * 2 * output.numel() * inputs // groups * kernel_height * kernel_width
    back = torch.ops.aten.convolution_backward
    steps = [stride, stride]
    return lambda: back(
        gradient, images, weights, None, steps, padding, [1, 1], False, [0, 0], groups, [not only_weights, True, False]
    )


def _attention(operation: Operation, device: torch.device) -> Call:
    samples, heads, key_heads, queries, keys, width, causal = operation.shape
    kind = TYPES[operation.numbers]

    def head(count: int, length: int) -> Tensor:
        # As models have it: the heads of one position side by side.
        vectors = _random((samples, length, count, width), device, kind).transpose(1, 2)
        return vectors.requires_grad_(operation.backward)

    parts = head(heads, queries), head(key_heads, keys), head(key_heads, keys)
    shared = heads != key_heads

    def attend() -> Tensor:
        return functional.scaled_dot_product_attention(*parts, is_causal=bool(causal), enable_gqa=shared)

    if not operation.backward:
        return attend
    attended = attend()
    gradient = torch.randn_like(attended)
    return lambda: torch.autograd.grad(attended, parts, gradient, retain_graph=True)


def _recurrent(operation: Operation, device: torch.device) -> Call:
    length, samples, inputs, width, directions = operation.shape
    kind = TYPES[operation.numbers]
    kind_of_layer = {"gru": torch.nn.GRU, "rnn": torch.nn.RNN}.get(operation.name, torch.nn.LSTM)
    layer = kind_of_layer(inputs, width, bidirectional=directions > 1, device=device, dtype=kind)
    values = _random((length, samples, inputs), device, kind).requires_grad_(operation.backward)
    if not operation.backward:
        # With gradients wanted of its weights, as in training: another kernel than without.
        return lambda: layer(values)[0]
    states = layer(values)[0]
    gradient, wanted = torch.randn_like(states), (values, *layer.parameters())
    return lambda: torch.autograd.grad(states, wanted, gradient, retain_graph=True)


def _memory(operation: Operation, device: torch.device) -> Call:
    name, kind = operation.plain_name, TYPES[operation.numbers]
    if name not in MEMORY_NAMES and name not in CORE_NAMES:
        # Reads as many bytes as it writes.
        elements = max(1, round(operation.moved_bytes / 2 / kind.itemsize))
        source, target = _random((elements,), device, kind), torch.empty(elements, device=device, dtype=kind)
        return lambda: target.copy_(source)
    arrays = CORE_NAMES[name][0] if name in CORE_NAMES else arrays_of(name, operation.numbers)
    elements = max(ROW * SIDE, round(operation.moved_bytes / arrays / kind.itemsize) // (ROW * SIDE) * ROW * SIDE)
    return _named(name, elements, device, kind)


def _named(name: str, elements: int, device: torch.device, kind: torch.dtype) -> Call:  # noqa: PLR0911 - one per name
    rows = _random((elements // ROW, ROW), device, kind)
    other = torch.randn_like(rows)
    aten = torch.ops.aten
    ones = torch.ones(ROW, device=device, dtype=kind)
    source = rows.to(torch.bfloat16 if kind == torch.float32 else torch.float32) if name == CAST else rows
    simple: dict[str, Call] = {
        CAST: lambda: source.to(kind),
        "add": lambda: rows + other, "mul": lambda: rows * other, "relu": lambda: functional.relu(rows),
        "gelu": lambda: functional.gelu(rows), "gelu_backward": lambda: aten.gelu_backward(other, rows),
        "gelu_tanh": lambda: functional.gelu(rows, approximate="tanh"),
        "gelu_tanh_backward": lambda: aten.gelu_backward(other, rows, approximate="tanh"),
        "silu": lambda: functional.silu(rows), "silu_backward": lambda: aten.silu_backward(other, rows),
        "clone": rows.clone, "sum": lambda: rows.sum(0),
        "threshold_backward": lambda: aten.threshold_backward(other, rows, 0),
        "native_layer_norm": lambda: aten.native_layer_norm(rows, [ROW], ones, ones, 1e-5),
        "_log_softmax": lambda: functional.log_softmax(rows, -1),
    }  # fmt: skip
    if name in simple:
        return simple[name]
    if name == "native_layer_norm_backward":
        mean, deviation = aten.native_layer_norm(rows, [ROW], ones, ones, 1e-5)[1:]
        masks = [True, True, True]
        return lambda: aten.native_layer_norm_backward(other, rows, [ROW], mean, deviation, ones, ones, masks)
    if name.startswith("_fused_rms_norm") and device.type == "cpu":
        # There is no such kernel for cores, which make it of several.
        inputs = rows.requires_grad_(name.endswith("backward"))
        normed = functional.rms_norm(inputs, [ROW], ones)
        if not inputs.requires_grad:
            return lambda: functional.rms_norm(rows, [ROW], ones)
        return lambda: torch.autograd.grad(normed, inputs, other, retain_graph=True)
    if name.startswith("_fused_rms_norm"):
        scale = aten._fused_rms_norm(rows, [ROW], ones, 1e-5)[1]
        if not name.endswith("backward"):
            return lambda: aten._fused_rms_norm(rows, [ROW], ones, 1e-5)
        return lambda: aten._fused_rms_norm_backward(other, rows, [ROW], scale, ones, [True, True])
    if name == "_log_softmax_backward_data":
        logarithms = functional.log_softmax(rows, -1)
        return lambda: aten._log_softmax_backward_data(other, logarithms, -1, kind)
    return _of_images(name, elements, device, kind)


def _of_images(name: str, elements: int, device: torch.device, kind: torch.dtype) -> Call:  # noqa: PLR0911 - as above
    """Norms and pooling over the pixels of (samples, 32 channels, 32, 32), with channels fastest where they may be."""
    shape = (elements // (NORM_GROUPS * SIDE * SIDE), NORM_GROUPS, SIDE, SIDE)
    images = _random(shape, device, kind).to(memory_format=torch.channels_last)
    if name == "max_pool2d_with_indices":
        return lambda: functional.max_pool2d(images, 2)
    if name == "max_pool2d_with_indices_backward":
        size = [2, 2]
        pooled, places = functional.max_pool2d(images, 2, return_indices=True)
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return lambda: back(pooled, images, size, size, [0, 0], [1, 1], False, places)
    if name == "contiguous":
        return lambda: images.contiguous(memory_format=torch.contiguous_format)
    aten, samples, pixels = torch.ops.aten, shape[0], SIDE * SIDE
    # A batch norm keeps its parameters wide.
    ones = torch.ones(NORM_GROUPS, device=device, dtype=torch.float32 if "batch" in name else kind)
    zeros, groups, masks = torch.zeros_like(ones), NORM_GROUPS // 2, [True, True, True]
    if name.startswith("native_group_norm"):
        images = images.contiguous()
        grouped = [samples, NORM_GROUPS, pixels, groups]
        if not name.endswith("backward"):
            return lambda: aten.native_group_norm(images, ones, zeros, *grouped, 1e-5)
        normed, mean, deviation = aten.native_group_norm(images, ones, zeros, *grouped, 1e-5)
        return lambda: aten.native_group_norm_backward(normed, images, mean, deviation, ones, *grouped, masks)
    running = zeros.clone(), ones.clone()
    if not name.endswith("backward"):
        return lambda: aten.native_batch_norm(images, ones, zeros, *running, True, 0.1, 1e-5)
    normed, mean, deviation = aten.native_batch_norm(images, ones, zeros, *running, True, 0.1, 1e-5)
    return lambda: aten.native_batch_norm_backward(normed, images, ones, *running, mean, deviation, True, 1e-5, masks)


def _update(operation: Operation, device: torch.device) -> Call:
    name, arrays = operation.update_name, min(ARRAYS, operation.shape[0])
    if device.type == "cpu":
        arrays = min(arrays, -(-operation.shape[0] // PARAMETERS_OF_AN_ARRAY))
    if name not in UPDATE_BYTES:
        # A pass over the optimizer's own numbers, such as its counts of steps.
        return _memory(replace(operation, kind="memory", name=""), device)
    settings = Optimizer(name="sgd" if name == "momentum" else name)  # type: ignore[arg-type]
    if name == "momentum":
        settings = settings.model_copy(update={"momentum": 0.9})
    parameters = [torch.nn.Parameter(_random((operation.shape[0] // arrays,), device)) for _ in range(arrays)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step: Call = make_optimizer(settings, parameters, eager=True).step
    return step


def _random(shape: tuple[int, ...], device: torch.device, kind: torch.dtype = torch.float32) -> Tensor:
    # Zeros take less power than numbers, and then the clock stays higher.
    return torch.randn(shape, device=device, dtype=kind)
