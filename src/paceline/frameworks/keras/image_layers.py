"""Keras layers of residual networks and vision transformers; images are channels-last."""

from typing import Any

import keras
from keras import ops

from paceline.workloads import image_layers as neutral
from paceline.workloads.image_layers import groups_of
from paceline.workloads.layers import NORM_EPSILON, Layer, Shape


class Normalised(keras.layers.Layer):
    """A convolution without a bias and a norm over groups of its channels."""

    def __init__(self, kernel: int, channels: int, stride: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.edge, self.stride = kernel // 2, stride
        self.conv = keras.layers.Conv2D(
            channels,
            kernel,
            stride,
            data_format="channels_last",
            use_bias=False,
            kernel_initializer="zeros",
            name="conv",
        )
        self.norm = keras.layers.GroupNormalization(groups_of(channels), epsilon=NORM_EPSILON, name="norm")

    def build(self, input_shape: Shape) -> None:
        """Builds both."""
        n, high, broad, channels = input_shape
        self.conv.build((n, high + 2 * self.edge, broad + 2 * self.edge, channels))
        self.norm.build((n, high, broad, self.conv.filters))

    def call(self, x: Any) -> Any:
        """(n, h, w, c) to the same with other channels. The same edge is added on both sides, as PyTorch does."""
        edges = (self.edge, self.edge)
        return self.norm(self.conv(ops.pad(x, ((0, 0), edges, edges, (0, 0))) if self.edge else x))


class StemLayer(keras.layers.Layer):
    """The first layers of a residual network."""

    def __init__(self, stem: neutral.Stem, **fields: Any) -> None:
        super().__init__(**fields)
        self.conv = Normalised(stem.kernel, stem.channels, stem.stride, name="conv")

    def build(self, input_shape: Shape) -> None:
        """Builds the convolution."""
        self.conv.build(input_shape)

    def call(self, x: Any) -> Any:
        """(n, h, w, c) to fewer pixels and more channels."""
        return ops.relu(self.conv(x))


class ResidualLayer(keras.layers.Layer):
    """Two or three convolutions, and the input added, itself or made to fit."""

    def __init__(self, inputs: int, block: neutral.Residual, **fields: Any) -> None:
        super().__init__(**fields)
        self.chain: list[str] = []
        self.inner = {name: channels for name, _, channels, _, _ in block.convolutions(inputs)}
        for name, kernel, _, channels, stride in block.convolutions(inputs):
            setattr(self, name, Normalised(kernel, channels, stride, name=name))
            self.chain += [name] if name != "skip" else []

    def build(self, input_shape: Shape) -> None:
        """Builds the convolutions; their heights and widths do not matter to their arrays."""
        for name, channels in self.inner.items():
            getattr(self, name).build((*input_shape[:-1], channels))

    def call(self, x: Any) -> Any:
        """(n, h, w, c) to perhaps fewer pixels and more channels."""
        hidden = x
        for name in self.chain:
            hidden = getattr(self, name)(hidden)
            hidden = hidden if name == self.chain[-1] else ops.relu(hidden)
        return ops.relu(hidden + (self.skip(x) if "skip" in self.inner else x))


class OverlappingPoolLayer(keras.layers.Layer):
    """The largest of each three by three pixels, every second one; what it is given is never negative."""

    def call(self, x: Any) -> Any:
        """(n, h, w, c) to half the height and width."""
        padded = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return ops.max_pool(padded, 3, 2, padding="valid", data_format="channels_last")


class PatchesLayer(keras.layers.Layer):
    """Squares of an image as vectors, the class's before them, positions added."""

    def __init__(self, length: int, patches: neutral.Patches, **fields: Any) -> None:
        super().__init__(**fields)
        self.length, self.width = length, patches.width
        self.conv = keras.layers.Conv2D(
            patches.width,
            patches.size,
            patches.size,
            data_format="channels_last",
            kernel_initializer="zeros",
            name="conv",
        )

    def build(self, input_shape: Shape) -> None:
        """Makes the class's vector and the positions."""
        self.conv.build(input_shape)
        self.class_vector = self.add_weight(shape=(self.width,), initializer="zeros", name="class_vector")
        self.positions = self.add_weight(shape=(self.length, self.width), initializer="zeros", name="positions")

    def call(self, x: Any) -> Any:
        """(n, h, w, c) to (n, length, width)."""
        vectors = ops.reshape(self.conv(x), (-1, self.length - 1, self.width))
        first = ops.zeros_like(vectors[:, :1]) + ops.convert_to_tensor(self.class_vector)
        return ops.concatenate((first, vectors), axis=1) + ops.convert_to_tensor(self.positions)


def image_layer(name: str, layer: Layer, shape: Shape) -> keras.layers.Layer | None:  # noqa: PLR0911 - one per kind
    """The Keras layer of a layer of this kind; None for other layers."""
    match layer:
        case neutral.Stem():
            return StemLayer(layer, name=name)
        case neutral.OverlappingPool():
            return OverlappingPoolLayer(name=name)
        case neutral.Residual():
            return ResidualLayer(shape[0], layer, name=name)
        case neutral.AveragePool():
            return keras.layers.GlobalAveragePooling2D(data_format="channels_last", name=name)
        case neutral.Patches():
            return PatchesLayer(layer.output(shape)[0], layer, name=name)
        case neutral.FirstVector():
            return keras.layers.Lambda(lambda x: x[:, 0], output_shape=shape[1:], name=name)
    return None


def image_variable(layer: keras.layers.Layer, array: str) -> keras.Variable | None:
    """The variable of such a layer that holds a neutral array; None for other layers."""
    if isinstance(layer, StemLayer | ResidualLayer):
        inner, _, kind = array.rpartition("_")
        owner = getattr(layer, inner)
        return {"kernel": owner.conv.kernel, "scale": owner.norm.gamma, "shift": owner.norm.beta}[kind]
    if isinstance(layer, PatchesLayer):
        return {
            "kernel": layer.conv.kernel, "bias": layer.conv.bias, "class": layer.class_vector,
            "positions": layer.positions,
        }[array]  # fmt: skip
    return None
