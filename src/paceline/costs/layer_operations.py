"""Operations of a built-in layer, from its facts alone: what PyTorch asks a device for in each pass.

Layers whose arrays do not say what they are become one product of as many floating-point operations.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from paceline.costs.block_operations import block_operations
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.operations import (
    LOSS,
    NUMBER_BYTES,
    LayerOperations,
    Operation,
    StepOperations,
    convolution,
    memory,
    update,
)
from paceline.costs.pass_operations import ARRAYS, CAST, Pass, PassOperations, dense, norm, pointwise
from paceline.spec import Optimizer, Precision, Recompute

IMAGE_KERNEL = 4
# Operations that arrays explain and those that are counted differ by biases and roundings.
ROUGHLY = 0.1


def _convolved(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A convolution with a bias and ReLU, the stem or a block of a residual network, or the patches of an image."""
    shapes, passes = dict(layer.arrays), PassOperations([], [])
    kernels = {name: shape for name, shape in layer.arrays if len(shape) == IMAGE_KERNEL}
    first = next(iter(kernels.values()))
    side = _side(on.input_elements / first[2])
    # The sides behind the layer: pixels of its last convolution, whatever `class` vectors come with them.
    last = list(kernels.values())[-1]
    side_behind = _side(layer.output_elements / last[3])
    for number, (name, (height, width, inputs, outputs)) in enumerate(kernels.items()):
        input_side, output_side = _sides(name, kernels, side, side_behind)
        stride = max(1, round(input_side / output_side))
        shape = (on.samples, inputs, input_side, input_side, outputs, height, width, stride, 1)
        gradients, weights = 2 if on.sends_back or number else 1, height * width * inputs * outputs
        passes.add(
            [*on.cast(weights), convolution(on.numbers, shape)],
            [convolution(on.numbers, shape, backward=True, gradients=gradients), *on.widen(weights, backward=True)],
        )
        elements = on.samples * outputs * output_side * output_side
        if name.removesuffix("kernel") + "scale" in shapes:
            passes.add([*on.widen(elements)], [*on.cast(elements, backward=True)])
            # Convolutions have channels fastest and CUDA's norms over groups have not: numbers are put in another order
            # between them, each way.
            pointwise(passes, on.wide, elements, "contiguous", "contiguous")
            pointwise(passes, on.wide, elements, "native_group_norm", "native_group_norm_backward")
            pointwise(passes, on.numbers, elements, "contiguous", "contiguous")
            if name in ("conv3_kernel",) or (name == "conv2_kernel" and "conv3_kernel" not in kernels):
                pointwise(passes, on.wide, elements, "add", "add")
            if not name.startswith("skip"):
                pointwise(passes, on.wide, elements, "relu", "threshold_backward")
                passes.add([*on.cast(elements)], [*on.widen(elements, backward=True)])
        elif "bias" in shapes:
            pointwise(passes, on.numbers, elements, "add", "sum")
            if "class" in shapes:
                pointwise(passes, on.wide, elements, "cat add", "sum")
            else:
                pointwise(passes, on.numbers, elements, "relu", "threshold_backward")
    return passes.operations(layer.name)


def _sides(name: str, kernels: dict[str, tuple[int, ...]], before: int, behind: int) -> tuple[int, int]:
    """Height (or width) of the image before and after a convolution of a layer; one of several may be strided."""
    if len(kernels) == 1 or name.startswith("skip"):
        return before, behind
    shrinking = "conv2_kernel" if "conv3_kernel" in kernels else "conv1_kernel"
    order = list(kernels).index(name) - list(kernels).index(shrinking)
    return (before if order <= 0 else behind), (before if order < 0 else behind)


def _side(pixels: float) -> int:
    return max(1, math.isqrt(max(1, round(pixels))))


def _product_layer(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A dense layer or head, or a worker's part of one; a tied head multiplies with the embedding's table."""
    shapes, passes = dict(layer.arrays), PassOperations([], [])
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
    dense(passes, on, sizes, bias="bias" in shapes, sends_back=on.sends_back, wide=wide)
    return passes.operations(layer.name)


def _counted(layer: LayerFacts, on: Pass) -> LayerOperations:
    """A layer known only by counts: one product with as many operations, over the numbers it reads and writes."""
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
    """Embedding lookups, perhaps with positions added and normalised."""
    passes, shapes = PassOperations([], []), dict(layer.arrays)
    elements = on.samples * layer.output_elements
    pointwise(passes, "fp32", elements, "embedding", "embedding_dense_backward")
    # The gradient of the table is filled with zeros first.
    passes.add([], [memory("fp32", math.prod(shapes["tokens"]), 1, "fill_", backward=True)])
    for name in ("positions", "segments"):
        if name in shapes:
            pointwise(passes, "fp32", elements, "add", "sum")
    if "norm_scale" in shapes:
        pointwise(passes, "fp32", elements, "native_layer_norm", "native_layer_norm_backward")
    return passes.operations(layer.name)


def _small(layer: LayerFacts, on: Pass) -> LayerOperations:
    """Norms and layers without parameters: one pass over memory in each direction."""
    passes, elements = PassOperations([], []), on.samples * max(on.input_elements, layer.output_elements)
    shapes = dict(layer.arrays)
    if not layer.forward_flops:
        return LayerOperations(layer.name, (), ())
    if "scale" in shapes:
        norm(passes, on, elements, rms="shift" not in shapes)
    elif on.input_elements > layer.output_elements:
        numbers = on.wide if layer.kept > layer.output_elements else on.numbers
        pointwise(passes, numbers, elements, "max_pool2d_with_indices", "max_pool2d_with_indices_backward")
    else:
        pointwise(passes, on.numbers, elements, "gelu", "gelu_backward")
    return passes.operations(layer.name)


# What PyTorch makes of a softmax, and of its gradient, where ranks have parts of the vocabulary.
SPLIT_SOFTMAX = {"amax": 1, "sub": 2, "exp": 2, "sum": 1}
SPLIT_SOFTMAX_BACK = {"fill_": 1, "exp": 2, "add": 3, "mul": 2}


def loss_operations(outputs: float, on: Pass, *, casts: bool = False, split: bool = False) -> LayerOperations:
    """Cross-entropy over the last layer's outputs: the softmax in their numbers, the rest in single precision.

    Where a model `casts` its parameters, its outputs are widened before the loss. Where the vocabulary is `split` over
    ranks, the softmax is no longer one kernel.
    """
    if casts or split:
        return _wide_loss(outputs, on, casts, split)
    n = "fp32" if on.numbers == "tf32" else on.numbers
    softmax = memory(n, outputs, ARRAYS["_log_softmax"], "_log_softmax")
    gradient = memory(n, outputs, 3, "_log_softmax_backward_data", backward=True)
    forward = [softmax, *on.widen(outputs), memory("fp32", 1, 2, "nll_loss_forward")]
    backward = [
        memory("fp32", outputs, 2, "nll_loss_backward", backward=True), *on.cast(outputs, backward=True), gradient
    ]  # fmt: skip
    return LayerOperations(LOSS, tuple(forward), tuple(backward))


def _wide_loss(outputs: float, on: Pass, casts: bool, split: bool) -> LayerOperations:
    names = SPLIT_SOFTMAX | {"sub_": 2} if split else {"_log_softmax": ARRAYS["_log_softmax"]}
    back_names = SPLIT_SOFTMAX_BACK if split else {"nll_loss_backward": 2, "_log_softmax_backward_data": 3}
    forward = [memory("fp32", outputs, arrays, name) for name, arrays in names.items()]
    backward = [memory("fp32", outputs, arrays, name, backward=True) for name, arrays in back_names.items()]
    if casts:
        forward.insert(0, memory("fp32", outputs, 1.5, CAST))
        backward.append(memory("bf16", outputs, 3, CAST, backward=True))
    return LayerOperations(LOSS, tuple(forward), tuple(backward))


@cache
def layer_operations(layer: LayerFacts, on: Pass) -> LayerOperations:
    """The operations of one layer's forward and backward pass over a batch."""
    if not layer.frozen_arrays:
        return _trained(layer, on)
    operations = _trained(layer.unfrozen, on)
    if layer.parameters:
        return operations
    # What goes back to the layer before it, without gradients of its own weights.
    of_weights = Counter(_trained(layer.unfrozen, replace(on, sends_back=False)).backward)
    back = Counter(operations.backward) - of_weights if on.sends_back else Counter[Operation]()
    return replace(operations, backward=tuple(back.elements()))


def _trained(layer: LayerFacts, on: Pass) -> LayerOperations:
    shapes = dict(layer.arrays)
    kinds: list[tuple[bool, Callable[[LayerFacts, Pass], LayerOperations]]] = [
        ("norm1_scale" in shapes and layer.heads is not None, block_operations),
        (any(len(shape) == IMAGE_KERNEL for shape in shapes.values()) and on.input_elements > 0, _convolved),
        (layer.tied is not None or len(shapes.get("kernel", ())) == 2, _product_layer),
        ("tokens" in shapes, _looked_up),
        (layer.kind in ("shape", "other"), _small),
    ]
    return next((make for fits, make in kinds if fits), _counted)(layer, on)


def recomputed(operations: LayerOperations, recompute: Recompute, layer: LayerFacts) -> LayerOperations:
    """Adds what is recomputed before the backward pass: the whole block, or all but products and attention.

    Nothing of a whole block needs what its last product gives: PyTorch stops before it, and compilers leave it out.
    What experts give is weighed, and so needed.
    """
    if recompute == "none" or layer.heads is None:
        return operations
    again = operations.forward
    if recompute == "selective":
        again = tuple(operation for operation in again if operation.kind == "memory")
    elif not layer.experts:
        again = again[: max(place for place, operation in enumerate(again) if operation.kind == "product")]
    return replace(operations, backward=(*again, *operations.backward))


def model_operations(
    model: ModelFacts, samples: float, precision: Precision, optimizer: Optimizer, recompute: Recompute = "none"
) -> StepOperations:
    """The operations of one step of the whole model, or of the part that a worker holds."""
    layers, elements, trained = [], model.input_elements, False
    for layer in model.layers:
        on = Pass(max(1, round(samples)), precision, elements, trained)
        # Layers that are alike but in name have the same operations, worked out once.
        operations = layer_operations(replace(layer, name=""), on)
        layers.append(replace(recomputed(operations, recompute, layer), layer=layer.name))
        elements, trained = layer.output_elements, trained or layer.parameters > 0
    layers.append(loss_operations(samples * elements, Pass(1, precision)))
    name = optimizer.update_name
    return StepOperations(tuple(layers), () if name == "lbfgs" else (update(name, model.parameters),))
