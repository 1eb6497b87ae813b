"""Neutral layers as a Keras 3 model, for whichever backend Keras runs on, and a user's own Keras model beside them.

The model is a `keras.Sequential` whose layers carry the neutral layers' names, so that it can be cut anywhere. Images
are channels-last, which makes the neutral weights fit as they are; pooling comes before ReLU (the result is the same,
the work a quarter).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.spec import RunSpec
from paceline.workloads.base import Layers, Weights, named_layers
from paceline.workloads.layers import (
    MLP_OVER_WIDTH,
    NORM_EPSILON,
    Block,
    Conv,
    Dense,
    Embed,
    Flatten,
    Layer,
    MaxPool,
    Norm,
    Shape,
)
from paceline.workloads.own import OWN_DATA, build_own

IMAGE_DIMENSIONS = 4
# What a masked score is lowered by: its softmax is zero in every precision, and no infinities meet.
MASKED = -1e9
# Neutral part of a layer ─► attribute of the Keras layer.
_ATTRIBUTE = {"scale": "gamma", "shift": "beta"}
# Data whose samples have the shape that the user gave; images of other data sets are turned to channels-last.
_AS_GIVEN = (OWN_DATA, "synthetic")

Loss = Callable[[Any, Any], Any]


class EmbedLayer(keras.layers.Layer):
    """Token plus position embedding."""

    def __init__(self, vocabulary: int, width: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.vocabulary, self.width = vocabulary, width

    def build(self, input_shape: Shape) -> None:
        """Two tables."""
        self.tokens = self.add_weight(shape=(self.vocabulary, self.width), initializer="zeros", name="tokens")
        self.positions = self.add_weight(shape=(input_shape[1], self.width), initializer="zeros", name="positions")

    def call(self, tokens: Any) -> Any:
        """(n, length) to (n, length, width)."""
        return ops.take(self.tokens, tokens, axis=0) + ops.convert_to_tensor(self.positions)


class BlockLayer(keras.layers.Layer):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.heads, self.head_width = heads, width // heads
        self.norm1, self.norm2 = _norm("norm1"), _norm("norm2")
        self.qkv, self.out = _dense(3 * width, "qkv"), _dense(width, "out")
        self.up, self.down = _dense(MLP_OVER_WIDTH * width, "up"), _dense(width, "down")

    def build(self, input_shape: Shape) -> None:
        """All of them take the width of the input, but for the last."""
        for layer in (self.norm1, self.norm2, self.qkv, self.out, self.up):
            layer.build(input_shape)
        self.down.build((*input_shape[:-1], MLP_OVER_WIDTH * input_shape[-1]))

    def call(self, x: Any) -> Any:
        """(n, length, width) to the same."""
        x = x + self.out(self._attend(self.qkv(self.norm1(x))))
        return x + self.down(ops.gelu(self.up(self.norm2(x)), approximate=True))

    def _attend(self, qkv: Any) -> Any:
        length, width = qkv.shape[1], self.heads * self.head_width
        # (n, length, 3 x heads x head width) to three times (n, heads, length, head width).
        parts = ops.transpose(ops.reshape(qkv, (-1, length, 3, self.heads, self.head_width)), (2, 0, 3, 1, 4))
        queries, keys, values = parts[0], parts[1], parts[2]
        scores = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2))) * (self.head_width**-0.5)
        scores = scores + ops.cast(np.triu(np.full((length, length), MASKED, np.float32), 1), scores.dtype)
        attended = ops.matmul(ops.softmax(scores, axis=-1), values)
        return ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (-1, length, width))


def _norm(name: str) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(epsilon=NORM_EPSILON, name=name)


def _dense(units: int, name: str) -> keras.layers.Layer:
    return keras.layers.Dense(units, kernel_initializer="zeros", name=name)


def keras_layers(layers: Layers, shape: Shape) -> list[keras.layers.Layer]:
    """A Keras layer for each neutral one, under its name, and the ReLUs between them."""
    steps = named_layers(layers, shape)
    followed_by_pool = {name for (name, _, _), (_, after, _) in pairwise(steps) if isinstance(after, MaxPool)}
    made: list[keras.layers.Layer] = []
    waiting_relu: str | None = None
    for name, layer, given in steps:
        made.append(_layer(name, layer, given))
        if isinstance(layer, Conv) and name in followed_by_pool:
            waiting_relu = f"{name}_relu"
            continue
        if waiting_relu or isinstance(layer, Conv) or (isinstance(layer, Dense) and layer.relu):
            made.append(keras.layers.ReLU(name=waiting_relu or f"{name}_relu"))
            waiting_relu = None
    return made


def _layer(name: str, layer: Layer, given: Shape) -> keras.layers.Layer:  # noqa: PLR0911 - one per kind of layer
    match layer:
        case Conv(channels, kernel):
            return keras.layers.Conv2D(
                channels, kernel, padding="same", data_format="channels_last", kernel_initializer="zeros", name=name
            )
        case MaxPool(size):
            return keras.layers.MaxPooling2D(size, data_format="channels_last", name=name)
        case Flatten():
            return keras.layers.Flatten(data_format="channels_last", name=name)
        case Dense(units):
            return _dense(units, name)
        case Embed(vocabulary, width):
            return EmbedLayer(vocabulary, width, name=name)
        case Norm():
            return _norm(name)
        case Block(heads):
            return BlockLayer(given[-1], heads, name=name)
    raise TypeError(f"no Keras layer for {type(layer).__name__}")


def keras_input(shape: Shape) -> Any:
    """The model's input: images channels-last, tokens as whole numbers of the backend's own size."""
    if len(shape) == IMAGE_DIMENSIONS - 1:
        return keras.Input((*shape[1:], shape[0]))
    return keras.Input(shape, dtype=keras.backend.standardize_dtype("int"))


def build_layers(layers: Layers, shape: Shape, weights: Weights) -> keras.Sequential:
    """The network with the given weights."""
    model = keras.Sequential([keras_input(shape), *keras_layers(layers, shape)], name="model")
    for name, variable in named_variables(model, layers, shape).items():
        variable.assign(weights[name])
    return model


def named_variables(model: keras.Model, layers: Layers, shape: Shape) -> dict[str, keras.Variable]:
    """The variables of `build_layers` by the names of the neutral weights, in their order."""
    return {
        f"{name}.{part}": _variable(model.get_layer(name), part)
        for name, layer, given in named_layers(layers, shape)
        for part in layer.weights(given)
    }


def _variable(layer: keras.layers.Layer, part: str) -> keras.Variable:
    if isinstance(layer, BlockLayer):
        inner, _, part = part.rpartition("_")
        layer = getattr(layer, inner)
    return getattr(layer, _ATTRIBUTE.get(part, part))


def build_model(context: Context) -> keras.Model:
    """The run's model with its starting weights: neutral layers, or what the user's file returns."""
    set_precision(context.spec)
    keras.utils.set_random_seed(context.spec.seed)
    model = context.model
    if model.own is not None:
        return own_model(context)
    return build_layers(model.layers, context.data.input_shape, context.starting_weights())


def own_model(context: Context) -> keras.Model:
    """The user's Keras model, with its variables made."""
    own = context.own
    assert own is not None
    model = build_own(own)
    if not isinstance(model, keras.Model):
        raise ModelError(f"{own.label} returned {type(model).__name__}, not a keras.Model; return the model itself")
    make_variables(context, model)
    return model


def make_variables(context: Context, model: keras.Model) -> None:
    """A model that was not told the shape of its inputs makes its variables when it first sees some."""
    if not model.built:
        model(keras_inputs(context, context.data.train_inputs[:1]))


def set_precision(spec: RunSpec) -> None:
    """Applies the run's precision to every layer made from now on; variables stay in single precision."""
    keras.config.set_dtype_policy("mixed_bfloat16" if spec.precision == "bf16" else "float32")


def keras_inputs(context: Context, array: np.ndarray) -> np.ndarray:
    """Inputs as the model takes them: images channels-last, unless the user gave them for a model of their own."""
    as_given = context.spec.model is not None and context.spec.dataset in _AS_GIVEN
    turned = array if as_given or array.ndim != IMAGE_DIMENSIONS else array.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(turned)


def loss_function(context: Context, model: keras.Model) -> Loss:
    """The user's loss, or mean cross-entropy over samples and positions; called with outputs and targets."""
    own = context.model.own
    if own is not None and own.loss is not None:
        return own.loss
    from_logits = not ends_in_softmax(model)

    def cross_entropy(outputs: Any, targets: Any) -> Any:
        outputs = ops.cast(outputs, "float32")
        return ops.mean(ops.sparse_categorical_crossentropy(targets, outputs, from_logits=from_logits))

    return cross_entropy


def ends_in_softmax(model: keras.Model) -> bool:
    """Whether the outputs are probabilities already."""
    last = model.layers[-1] if model.layers else None
    return isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax


def export_weights(context: Context, model: keras.Model) -> Weights:
    """In the neutral layout, or under the user's own names."""
    if context.model.own is not None:
        return {variable.path: np.asarray(ops.convert_to_numpy(variable)) for variable in model.weights}
    variables = named_variables(model, context.model.layers, context.data.input_shape)
    return {name: np.asarray(ops.convert_to_numpy(variable)) for name, variable in variables.items()}
