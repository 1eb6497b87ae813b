"""What Keras 3 knows of each kind of layer, on any of its backends: the layer, and the variables of its arrays."""

from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.workloads import layers as neutral
from paceline.workloads.layers import MLP_OVER_WIDTH, NORM_EPSILON, Layer, Shape

# What a masked score is lowered by: its softmax is zero in every precision, and no infinities meet.
MASKED = -1e9
# Neutral array of a layer ─► attribute of the Keras layer, where they have different names.
_ATTRIBUTES = {"scale": "gamma", "shift": "beta"}


class EmbedLayer(keras.layers.Layer):
    """Token plus position embedding."""

    def __init__(self, vocabulary: int, width: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.vocabulary, self.width = vocabulary, width

    def build(self, input_shape: Shape) -> None:
        """Makes a table for tokens and one for positions."""
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
        """Builds the inner layers; all but the last take the width of the input."""
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


def keras_layer(name: str, layer: Layer, shape: Shape) -> keras.layers.Layer:  # noqa: PLR0911 - one per kind of layer
    """The Keras layer, under this name, of a neutral one whose input has this shape."""
    match layer:
        case neutral.Conv(channels, kernel):
            return keras.layers.Conv2D(
                channels, kernel, padding="same", data_format="channels_last", kernel_initializer="zeros", name=name
            )
        case neutral.MaxPool(size):
            return keras.layers.MaxPooling2D(size, data_format="channels_last", name=name)
        case neutral.Flatten():
            return keras.layers.Flatten(data_format="channels_last", name=name)
        case neutral.Dense(units):
            return _dense(units, name)
        case neutral.Embed(vocabulary, width):
            return EmbedLayer(vocabulary, width, name=name)
        case neutral.Norm():
            return _norm(name)
        case neutral.Block(heads):
            return BlockLayer(shape[-1], heads, name=name)
    raise TypeError(f"no Keras layer for {type(layer).__name__}")


def variable_of(layer: keras.layers.Layer, array: str) -> keras.Variable:
    """The variable of a Keras layer that holds a neutral array."""
    if isinstance(layer, BlockLayer):
        inner, _, array = array.rpartition("_")
        layer = getattr(layer, inner)
    return getattr(layer, _ATTRIBUTES.get(array, array))
