"""A run's model as JAX source: the shapes of its arrays, and a function of them and the inputs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from paceline.recommend.scripts.base import Source, unknown_layer
from paceline.recommend.scripts.layout import INDENT
from paceline.spec import Optimizer
from paceline.workloads.base import Layers, named_layers, relu_places
from paceline.workloads.layers import Block, Conv, Dense, Embed, Flatten, Layer, MaxPool, Norm, Shape

MATMUL_PRECISIONS = {"fp32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}


def jax_values(source: Source) -> Mapping[str, Any]:
    """What the templates of JAX scripts are filled with, by name."""
    spec = source.spec
    layers, shape = source.built_in if spec.model is None else ((), ())
    return {
        "layers": {
            kind: any(type(layer).__name__ == kind for layer in layers) for kind in ("Conv", "MaxPool", "Block")
        },
        "shapes": list(shape_lines(layers, shape)),
        "block_shapes": next(
            (_shapes(each, input_shape) for _, each, input_shape in named_layers(layers, shape) if _is_block(each)), {}
        ),
        "forward": forward_text(layers, shape) if layers else [],
        "settings": list(optimizer_settings(spec.optimizer)) if "optimizer" not in source.user_functions else [],
        "matmul_precision": MATMUL_PRECISIONS[spec.precision],
        "is_bf16": spec.precision == "bf16",
        "channels_at_end": True,
        # Whether a user's file is loaded with the script, or later.
        "is_global": False,
    }


def optimizer_settings(settings: Optimizer) -> Iterator[str]:
    """Assignments for those that its class uses."""
    yield f"LEARNING_RATE = {settings.lr!r}"
    if settings.update_name == "adam":
        yield f"BETA1, BETA2 = {settings.betas[0]!r}, {settings.betas[1]!r}"
    if settings.update_name in ("adam", "adagrad"):
        yield f"EPSILON = {settings.eps!r}"
    elif settings.momentum:
        yield f"MOMENTUM = {settings.momentum!r}"
    if settings.weight_decay:
        yield f"WEIGHT_DECAY = {settings.weight_decay!r}"


def layer_names(layers: Layers) -> list[str]:
    """dense1, dense2, ...: what a layer is and which of its kind."""
    counts = Counter[str]()
    names = []
    for layer in layers:
        kind = type(layer).__name__.lower()
        counts[kind] += 1
        names.append(f"{kind}{counts[kind]}")
    return names


def shape_lines(layers: Layers, shape: Shape) -> Iterator[str]:
    """Items of a dict from the names of arrays to their shapes; blocks are alike and told once."""
    named = zip(layer_names(layers), named_layers(layers, shape), strict=True)
    for is_block, group in groupby(named, lambda item: _is_block(item[1][1])):
        members = list(group)
        if is_block:
            yield f'**{{f"block{{n}}.{{name}}": s for n in {_numbers(members)} for name, s in BLOCK.items()}}'
            continue
        for name, (_, layer, input_shape) in members:
            yield from (f'"{name}.{part}": {array}' for part, array in _shapes(layer, input_shape).items())


def forward_text(layers: Layers, shape: Shape) -> list[str]:
    """The body of the forward pass: what comes last is its result."""
    *lines, last = forward_lines(layers, shape)
    return [*lines, last.replace("x = ", "return ", 1)]


def forward_lines(layers: Layers, shape: Shape) -> Iterator[str]:
    """Statements that turn `x` into the outputs."""
    relus = relu_places(layers, shape)
    named = list(zip(layer_names(layers), named_layers(layers, shape), strict=True))
    # A convolution's bias comes with its ReLU: neither changes which pixel is the largest, and pooled there are fewer.
    late_bias = {known_as: name for name, (known_as, layer, _) in named if isinstance(layer, Conv)}
    for is_block, group in groupby(named, lambda item: _is_block(item[1][1])):
        members = list(group)
        if is_block:
            block = members[0][1][1]
            assert isinstance(block, Block)
            yield f"for number in {_numbers(members)}:"
            yield f'{INDENT}x = block(params, f"block{{number}}", x, heads={block.heads})'
            continue
        for name, (known_as, layer, _) in members:
            yield f"x = {_expression(name, layer)}"
            if relus.get(known_as) in late_bias:
                yield f'x = jax.nn.relu(x + params["{late_bias[relus[known_as]]}.bias"])'


def _numbers(members: list[Any]) -> str:
    first, last = (int(name.removeprefix("block")) for name in (members[0][0], members[-1][0]))
    return f"range({first}, {last + 1})"


def _is_block(layer: Layer) -> bool:
    return isinstance(layer, Block)


def _shapes(layer: Layer, shape: Shape) -> dict[str, Shape]:
    return {part: weight.shape for part, weight in layer.weights(shape).items()}


def _expression(name: str, layer: Layer) -> str:
    kernel, bias = f'params["{name}.kernel"]', f'params["{name}.bias"]'
    match layer:
        case Conv():
            return f"convolve(x, {kernel})"
        case MaxPool(size):
            return f"max_pool(x, {size})"
        case Flatten():
            return "x.reshape(len(x), -1)"
        case Dense(_, relu):
            dense = f"x @ {kernel} + {bias}"
            return f"jax.nn.relu({dense})" if relu else dense
        case Embed():
            return f'params["{name}.tokens"][x] + params["{name}.positions"]'
        case Norm():
            return f'normalise(x, params["{name}.scale"], params["{name}.shift"])'
    raise unknown_layer("JAX", layer)
