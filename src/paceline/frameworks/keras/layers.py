"""What Keras 3 knows of each kind of layer, on any of its backends: the layer, and the variables of its arrays."""

from typing import Any

import keras
from keras import ops

from paceline.frameworks.keras.image_layers import image_layer, image_variable
from paceline.frameworks.keras.transformer_layers import (
    NESTED,
    JointBlockLayer,
    TiedHeadLayer,
    dense_layer,
    norm_layer,
    transformer_layer,
)
from paceline.workloads import layers as neutral
from paceline.workloads.layers import Layer, Shape
from paceline.workloads.transformer_layers import TiedHead

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


def keras_layer(  # noqa: PLR0911 - one per kind of layer
    name: str, layer: Layer, shape: Shape, first: keras.layers.Layer | None = None
) -> keras.layers.Layer:
    """The Keras layer, under this name, of a neutral one whose input has this shape; `first` is that of the model."""
    match layer:
        case TiedHead(vocabulary, bias):
            return TiedHeadLayer(first, vocabulary, bias, name=name)
        case neutral.Conv(channels, kernel):
            return keras.layers.Conv2D(
                channels, kernel, padding="same", data_format="channels_last", kernel_initializer="zeros", name=name
            )
        case neutral.MaxPool(size):
            return keras.layers.MaxPooling2D(size, data_format="channels_last", name=name)
        case neutral.Flatten():
            return keras.layers.Flatten(data_format="channels_last", name=name)
        case neutral.Dense(units):
            return dense_layer(units, name)
        case neutral.Embed(vocabulary, width):
            return EmbedLayer(vocabulary, width, name=name)
        case neutral.Norm():
            return norm_layer(name)
        case neutral.Block(heads):
            return JointBlockLayer(shape[-1], heads, causal=True, name=name)
    built = transformer_layer(name, layer, shape) or image_layer(name, layer, shape)
    if built is None:
        raise TypeError(f"no Keras layer for {type(layer).__name__}")
    return built


def variable_of(layer: keras.layers.Layer, array: str) -> keras.Variable:
    """The variable of a Keras layer that holds a neutral array."""
    if (variable := image_variable(layer, array)) is not None:
        return variable
    if isinstance(layer, NESTED) and "_" in array:
        inner, _, array = array.rpartition("_")
        layer = getattr(layer, inner)
    return getattr(layer, _ATTRIBUTES.get(array, array))
