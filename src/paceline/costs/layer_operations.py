"""Operations of a built-in layer, from its facts alone: what PyTorch asks a device for in each pass.

Layers whose arrays do not say what they are become one product of as many floating-point operations.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.operations import (
    LOSS,
    NUMBER_BYTES,
    LayerOperations,
    Operation,
    OperationNumbers,
    StepOperations,
    attention,
    convolution,
    memory,
    product,
    update,
)
from paceline.spec import Optimizer, Precision, Recompute

# What passes multiply with, by the run's precision.
MULTIPLIED: dict[Precision, OperationNumbers] = {
    "fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "bf16-pure": "bf16",
}  # fmt: skip
# Under autocast parameters stay wide and are cast before each product.
AUTOCAST = ("bf16", "fp16")
# Arrays that memory-bound operations read and write, by what PyTorch calls them.
ARRAYS = {
    "add": 3, "mul": 3, "gelu": 2, "gelu_backward": 3, "gelu_tanh": 2, "gelu_tanh_backward": 3, "relu": 2,
    "threshold_backward": 3, "silu": 2, "silu_backward": 3, "native_layer_norm": 2, "native_layer_norm_backward": 3,
    "_fused_rms_norm": 2, "_fused_rms_norm_backward": 3, "native_group_norm": 2, "native_group_norm_backward": 3,
    "sum": 1, "clone": 2, "contiguous": 2, "_log_softmax": 2, "_log_softmax_backward_data": 3, "embedding": 2,
    "embedding_dense_backward": 3, "cat": 2, "neg": 2, "copy_": 2, "max_pool2d_with_indices": 2,
    "max_pool2d_with_indices_backward": 3, "select_backward": 4 / 3, "mean": 1, "div": 2, "index": 2, "fill_": 1,
}  # fmt: skip
# Rotating queries or keys: cosines, sines and their sum, and a copy with the halves exchanged; its backward pass adds
# what both halves give.
ROTATION, ROTATION_BACK = ("neg", "cat", "mul", "mul", "add"), ("mul", "mul", "neg", "cat", "add", "add")
# Of a mixture: softmax, choice, sorting, counting and gathering beside the experts' own products.
ROUTING, ROUTING_BACK = 12, 10
# How gradients of queries, keys and values become one.
JOINED = ("select_backward", "select_backward", "add", "select_backward", "add", "clone")
IMAGE_KERNEL = 4
CAST = "_to_copy"
# Operations that arrays explain and those that are counted differ by biases and roundings.
ROUGHLY = 0.1


@dataclass(frozen=True)
class Pass:
    """One batch through a layer: samples, numbers, and what the layer is given."""

    samples: int
    precision: Precision
    # Numbers of one sample that the layer takes, and whether their gradient is wanted.
    input_elements: int = 0
    sends_back: bool = True
    # Over how many ranks positions are divided where layers are whole: norms and sums of a block that is split.
    stretches: int = 1

    @property
    def numbers(self) -> OperationNumbers:
        """What products multiply with."""
        return MULTIPLIED[self.precision]

    @property
    def wide(self) -> OperationNumbers:
        """What autocast leaves in single precision: sums, norms, the loss."""
        return "fp32" if self.precision in AUTOCAST else self.numbers

    def cast(self, elements: float, *, backward: bool = False) -> Iterator[Operation]:
        """To numbers of two bytes, where passes are made under autocast."""
        if self.precision in AUTOCAST:
            # Four bytes are read and two written.
            yield memory("bf16", elements, 3, CAST, backward=backward)

    def widen(self, elements: float, *, backward: bool = False) -> Iterator[Operation]:
        """Back to numbers of four bytes."""
        if self.precision in AUTOCAST:
            yield memory("fp32", elements, 1.5, CAST, backward=backward)


@dataclass
class _Tape:
    """Operations of both passes; what each step of the forward pass needs on the way back is noted with it."""

    forward: list[Operation]
    backward: list[list[Operation]]

    def note(self, forward: list[Operation], backward: list[Operation]) -> None:
        """One step of the forward pass and what it needs on the way back."""
        self.forward += forward
        self.backward.append(backward)

    def operations(self, name: str) -> LayerOperations:
        """Both passes, the second from the last step on."""
        return LayerOperations(name, tuple(self.forward), tuple(op for part in reversed(self.backward) for op in part))


def _dense(
    tape: _Tape, on: Pass, sizes: tuple[int, int, int], *, bias: bool, sends_back: bool = True, wide: bool = False
) -> None:
    """A product of (rows, inner, columns) with a kernel; a bias comes with it, and its gradient is a sum.

    Under autocast an input that is `wide` is cast, once more for each product that takes it.
    """
    rows, inner, columns = sizes
    n, kernel = on.numbers, inner * columns
    if wide:
        tape.note([*on.cast(rows * inner)], [*on.widen(rows * inner, backward=True)] if sends_back else [])
    back = [product(n, rows, inner, columns, backward=True)] if sends_back else []
    back += [product(n, columns, inner, rows, backward=True, sums_rows=True), *on.widen(kernel, backward=True)]
    if bias:
        back += [memory(n, rows * columns, ARRAYS["sum"], "sum", backward=True), *on.widen(columns, backward=True)]
    casts = [*on.cast(kernel), *(on.cast(columns) if bias else ())]
    tape.note([*casts, product(n, rows, columns, inner)], back)


def _pointwise(tape: _Tape, numbers: OperationNumbers, elements: float, forward: str, *backward: str) -> None:
    """Memory-bound operations over so many numbers, by name."""
    names = forward.split()
    tape.note(
        [memory(numbers, elements, ARRAYS[name], name) for name in names],
        [memory(numbers, elements, ARRAYS[name], name, backward=True) for name in backward],
    )


def _block(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A transformer block: GPT's, an encoder's, Llama's or one with experts; `arrays` may be a worker's part."""
    shapes, tape = dict(layer.arrays), _Tape([], [])
    width = shapes["norm1_scale"][0]
    tokens = on.samples * layer.output_elements // width
    length = layer.output_elements // width
    own = tokens * width // on.stretches
    _norm(tape, on, own, rms="norm1_shift" not in shapes)
    _attend(tape, layer, on, tokens, length, width)
    _add(tape, on, own)
    _norm(tape, on, own, rms="norm2_shift" not in shapes)
    if "experts_gate" in shapes:
        _experts(tape, layer, on, tokens, width)
    elif "gate_kernel" in shapes:
        _gated(tape, on, tokens, width, shapes["gate_kernel"][1])
    else:
        hidden = shapes["up_kernel"][1]
        _dense(tape, on, (tokens, width, hidden), bias=True, wide=True)
        # GPT's is by tanh (Radford et al., 2019), an encoder's is exact.
        gelu = "gelu_tanh" if layer.causal else "gelu"
        _pointwise(tape, on.numbers, tokens * hidden, gelu, f"{gelu}_backward")
        _dense(tape, on, (tokens, hidden, width), bias=True)
    _add(tape, on, own)
    return tape.operations(layer.name)


def _add(tape: _Tape, on: Pass, elements: int) -> None:
    """What a product has made to what there was; on the way back both gradients meet again before it."""
    added = memory(on.wide, elements, ARRAYS["add"], "add")
    tape.note([added], [replace(added, backward=True), *on.cast(elements, backward=True)])


def _norm(tape: _Tape, on: Pass, elements: int, *, rms: bool) -> None:
    name = "_fused_rms_norm" if rms else "native_layer_norm"
    _pointwise(tape, on.wide, elements, name, f"{name}_backward")


def _attend(tape: _Tape, layer: LayerFacts, on: Pass, tokens: int, length: int, width: int) -> None:
    """Queries, keys and values, perhaps rotated; attention in one kernel; and the product behind it."""
    shapes, heads = dict(layer.arrays), layer.heads or 1
    head_width = width // heads
    if "qkv_kernel" in shapes:
        made = shapes["qkv_kernel"][1]
        _dense(tape, on, (tokens, width, made), bias="qkv_bias" in shapes, wide=True)
        own = made // (3 * head_width)
        key_heads = own
        # On the way back the gradients of all three, each among zeros, are added up, and copied in the usual order.
        joined = [memory(on.numbers, tokens * made, ARRAYS[name], name, backward=True) for name in JOINED]
        tape.note([], joined)
    else:
        own, key_heads = shapes["q_kernel"][1] // head_width, shapes["k_kernel"][1] // head_width
        for name in ("q_kernel", "k_kernel", "v_kernel"):
            _dense(tape, on, (tokens, width, shapes[name][1]), bias=False, wide=True)
        # The gradients of one input are added up.
        tape.note([], [memory(on.wide, tokens * width, ARRAYS["add"], "add", backward=True, count=2)])
        for count in (own, key_heads):
            _pointwise(tape, on.numbers, tokens * count * head_width, " ".join(ROTATION), *ROTATION_BACK)
    n, samples, causal = on.numbers, max(1, tokens // length), layer.causal
    both = ((own, key_heads), (length, length))
    tape.note(
        [attention(n, samples, *both, head_width, causal=causal)],
        [attention(n, samples, *both, head_width, causal=causal, backward=True)],
    )
    _dense(tape, on, (tokens, own * head_width, width), bias="out_bias" in shapes)


def _gated(tape: _Tape, on: Pass, tokens: int, width: int, hidden: int, *, wide: bool = True) -> None:
    _dense(tape, on, (tokens, width, hidden), bias=False, wide=wide)
    _pointwise(tape, on.numbers, tokens * hidden, "silu", "silu_backward")
    _dense(tape, on, (tokens, width, hidden), bias=False, wide=wide)
    _pointwise(tape, on.numbers, tokens * hidden, "mul", "mul", "mul")
    tape.note([], [memory(on.wide, tokens * width, ARRAYS["add"], "add", backward=True)])
    _dense(tape, on, (tokens, hidden, width), bias=False)


def _experts(tape: _Tape, layer: LayerFacts, on: Pass, tokens: int, width: int) -> None:
    """A router, and each expert with its share of the tokens; the host waits to learn how many each has."""
    count, hidden = dict(layer.arrays)["experts_gate"][0], dict(layer.arrays)["experts_gate"][-1]
    chosen = tokens * layer.chosen_experts
    share = max(1, chosen // max(1, count))
    _dense(tape, on, (tokens, width, layer.experts), bias=False, wide=True)
    scores = memory("fp32", tokens * layer.experts, 2, count=ROUTING)
    tape.note(
        [scores, memory(on.numbers, chosen * width, ARRAYS["index"], "index", waits=True)],
        [memory("fp32", tokens * layer.experts, 2, backward=True, count=ROUTING_BACK),
         memory(on.numbers, chosen * width, 3, backward=True)],
    )  # fmt: skip
    one = _Tape([], [])
    _gated(one, on, share, width, hidden, wide=False)
    each = one.operations("")
    tape.note(
        [replace(operation, count=operation.count * count) for operation in each.forward],
        [replace(operation, count=operation.count * count) for operation in each.backward],
    )
    _pointwise(tape, on.numbers, chosen * width, "cat mul", "mul", "mul", "cat")
    _pointwise(tape, on.numbers, chosen * width, "add", "index")


def _convolved(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A convolution with a bias and ReLU, the stem or a block of a residual network, or the patches of an image."""
    shapes, tape = dict(layer.arrays), _Tape([], [])
    kernels = {name: shape for name, shape in layer.arrays if len(shape) == IMAGE_KERNEL}
    first = next(iter(kernels.values()))
    side = _side(on.input_elements / first[2])
    # The sides behind the layer: pixels of its last convolution, whatever `class` vectors come with them.
    last = list(kernels.values())[-1]
    made = _side(layer.output_elements / last[3])
    for number, (name, (height, width, inputs, outputs)) in enumerate(kernels.items()):
        taken, left = _sides(name, kernels, side, made)
        stride = max(1, round(taken / left))
        shape = (on.samples, inputs, taken, taken, outputs, height, width, stride, 1)
        gradients, weights = 2 if on.sends_back or number else 1, height * width * inputs * outputs
        tape.note(
            [*on.cast(weights), convolution(on.numbers, shape)],
            [convolution(on.numbers, shape, backward=True, gradients=gradients), *on.widen(weights, backward=True)],
        )
        elements = on.samples * outputs * left * left
        if name.removesuffix("kernel") + "scale" in shapes:
            tape.note([*on.widen(elements)], [*on.cast(elements, backward=True)])
            # Convolutions have channels fastest and CUDA's norms over groups have not: numbers are put in another order
            # between them, each way.
            _pointwise(tape, on.wide, elements, "contiguous", "contiguous")
            _pointwise(tape, on.wide, elements, "native_group_norm", "native_group_norm_backward")
            _pointwise(tape, on.numbers, elements, "contiguous", "contiguous")
            if name in ("conv3_kernel",) or (name == "conv2_kernel" and "conv3_kernel" not in kernels):
                _pointwise(tape, on.wide, elements, "add", "add")
            if not name.startswith("skip"):
                _pointwise(tape, on.wide, elements, "relu", "threshold_backward")
                tape.note([*on.cast(elements)], [*on.widen(elements, backward=True)])
        elif "bias" in shapes:
            _pointwise(tape, on.numbers, elements, "add", "sum")
            if "class" in shapes:
                _pointwise(tape, on.wide, elements, "cat add", "sum")
            else:
                _pointwise(tape, on.numbers, elements, "relu", "threshold_backward")
    return tape.operations(layer.name)


def _sides(name: str, kernels: dict[str, tuple[int, ...]], side: int, made: int) -> tuple[int, int]:
    """Pixels along one side before and behind a convolution of a layer; of several, one makes them fewer."""
    if len(kernels) == 1 or name.startswith("skip"):
        return side, made
    shrinking = "conv2_kernel" if "conv3_kernel" in kernels else "conv1_kernel"
    order = list(kernels).index(name) - list(kernels).index(shrinking)
    return (side if order <= 0 else made), (side if order < 0 else made)


def _side(pixels: float) -> int:
    return max(1, math.isqrt(max(1, round(pixels))))


def _product_layer(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A dense layer or a head, or a worker's part of one; a tied head computes with another layer's table."""
    shapes, tape = dict(layer.arrays), _Tape([], [])
    inner, columns = (layer.tied[1], layer.tied[0]) if layer.tied else shapes["kernel"]
    rows = layer.output_elements // columns
    if layer.tied:
        # The first of the workers has the largest part of the table.
        columns = -(-columns // max(1, round(2 * rows * inner * columns / max(1, layer.forward_flops))))
    else:
        rows = min(rows, round(layer.forward_flops / (2 * inner * columns)))
    if abs(2 * rows * inner * columns - layer.forward_flops) > ROUGHLY * layer.forward_flops:
        return _counted(layer, on)
    # Behind a norm numbers are wide; behind other products they are not.
    sizes, wide = (on.samples * rows, inner, columns), layer.tied is not None
    _dense(tape, on, sizes, bias="bias" in shapes, sends_back=on.sends_back, wide=wide)
    return tape.operations(layer.name)


def _counted(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A layer of which only counts are known: a product of as many operations, over what it reads and writes."""
    inputs = on.samples * on.input_elements
    moved = (inputs + on.samples * layer.kept + layer.parameters) * NUMBER_BYTES[on.numbers]
    if not layer.forward_flops and not layer.parameters:
        return LayerOperations(layer.name, (), ())
    if not layer.parameters:
        operation = memory(on.numbers, moved / NUMBER_BYTES[on.numbers], 1)
        return LayerOperations(layer.name, (operation,), (replace(operation, moved_bytes=2 * moved, backward=True),))
    flops = float(on.samples * layer.forward_flops)
    edge = max(1, round((flops / 2) ** (1 / 3)))
    forward = Operation("product", on.numbers, (1, edge, edge, edge), flops, moved)
    back = (replace(forward, backward=True),) * (2 if on.sends_back else 1)
    return LayerOperations(layer.name, (forward,), back)


def _looked_up(layer: LayerFacts, on: Pass) -> LayerOperations:
    """Embeddings of tokens, perhaps with positions added and normalised."""
    tape, shapes = _Tape([], []), dict(layer.arrays)
    elements = on.samples * layer.output_elements
    _pointwise(tape, "fp32", elements, "embedding", "embedding_dense_backward")
    # The gradient of the table is filled with zeros first.
    tape.note([], [memory("fp32", math.prod(shapes["tokens"]), 1, "fill_", backward=True)])
    for name in ("positions", "segments"):
        if name in shapes:
            _pointwise(tape, "fp32", elements, "add", "sum")
    if "norm_scale" in shapes:
        _pointwise(tape, "fp32", elements, "native_layer_norm", "native_layer_norm_backward")
    return tape.operations(layer.name)


def _small(layer: LayerFacts, on: Pass) -> LayerOperations:
    """Norms by themselves, and layers without parameters: a pass over memory each way."""
    tape, elements = _Tape([], []), on.samples * max(on.input_elements, layer.output_elements)
    shapes = dict(layer.arrays)
    if not layer.forward_flops:
        return LayerOperations(layer.name, (), ())
    if "scale" in shapes:
        _norm(tape, on, elements, rms="shift" not in shapes)
    elif on.input_elements > layer.output_elements:
        numbers = on.wide if layer.kept > layer.output_elements else on.numbers
        _pointwise(tape, numbers, elements, "max_pool2d_with_indices", "max_pool2d_with_indices_backward")
    else:
        _pointwise(tape, on.numbers, elements, "gelu", "gelu_backward")
    return tape.operations(layer.name)


def loss_operations(outputs: float, on: Pass) -> LayerOperations:
    """Cross-entropy over the last layer's outputs: the softmax in their numbers, the rest in single precision."""
    n = "fp32" if on.numbers == "tf32" else on.numbers
    softmax = memory(n, outputs, ARRAYS["_log_softmax"], "_log_softmax")
    gradient = memory(n, outputs, 3, "_log_softmax_backward_data", backward=True)
    forward = [softmax, *on.widen(outputs), memory("fp32", 1, 2, "nll_loss_forward")]
    backward = [
        memory("fp32", outputs, 2, "nll_loss_backward", backward=True), *on.cast(outputs, backward=True), gradient
    ]  # fmt: skip
    return LayerOperations(LOSS, tuple(forward), tuple(backward))


@cache
def layer_operations(layer: LayerFacts, on: Pass) -> LayerOperations:
    """What both passes of a batch through a layer ask for."""
    shapes = dict(layer.arrays)
    known: list[tuple[bool, Callable[[LayerFacts, Pass], LayerOperations]]] = [
        ("norm1_scale" in shapes and layer.heads is not None, _block),
        (any(len(shape) == IMAGE_KERNEL for shape in shapes.values()) and on.input_elements > 0, _convolved),
        (layer.tied is not None or len(shapes.get("kernel", ())) == 2, _product_layer),
        ("tokens" in shapes, _looked_up),
        (layer.kind in ("shape", "other"), _small),
    ]
    return next((make for fits, make in known if fits), _counted)(layer, on)


def recomputed(operations: LayerOperations, recompute: Recompute, layer: LayerFacts) -> LayerOperations:
    """With what is computed again before the backward pass: all of a block, or all but products and attention."""
    if recompute == "none" or layer.heads is None:
        return operations
    again = operations.forward
    if recompute == "selective":
        again = tuple(operation for operation in again if operation.kind == "memory")
    return replace(operations, backward=(*again, *operations.backward))


def model_operations(
    model: ModelFacts, samples: float, precision: Precision, optimizer: Optimizer, recompute: Recompute = "none"
) -> StepOperations:
    """A step of the whole model, or of the part of it that a worker holds."""
    layers, elements, trained = [], model.input_elements, False
    for layer in model.layers:
        on = Pass(max(1, round(samples)), precision, elements, trained)
        # Layers that are alike but in name have the same operations, worked out once.
        operations = layer_operations(replace(layer, name=""), on)
        layers.append(replace(recomputed(operations, recompute, layer), layer=layer.name))
        elements, trained = layer.output_elements, trained or layer.parameters > 0
    layers.append(loss_operations(samples * elements, Pass(1, precision)))
    name = "momentum" if optimizer.name == "sgd" and optimizer.momentum else optimizer.name
    return StepOperations(tuple(layers), () if name == "lbfgs" else (update(name, model.parameters),))
