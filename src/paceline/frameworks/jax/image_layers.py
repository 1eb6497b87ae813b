"""Forward passes of residual networks and vision transformers in JAX; images are (n, h, w, c)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from paceline.workloads import image_layers as neutral
from paceline.workloads.image_layers import groups_of
from paceline.workloads.layers import NORM_EPSILON, Layer

Arrays = Callable[[str], Any]
IMAGES = ("NHWC", "HWIO", "NHWC")


def image_forward(layer: Layer, arrays: Arrays, x: Array) -> Array | None:  # noqa: PLR0911 - one per kind of layer
    """The output of a layer of this kind; None for other layers."""
    match layer:
        case neutral.Stem():
            return jax.nn.relu(_normalised(arrays, "conv", x, layer.stride))
        case neutral.OverlappingPool():
            return _overlapping_pool(x)
        case neutral.Residual():
            return _residual(layer, arrays, x)
        case neutral.AveragePool():
            return x.mean((1, 2))
        case neutral.Patches(size, width):
            squares = lax.conv_general_dilated(x, arrays("kernel"), (size, size), "VALID", dimension_numbers=IMAGES)
            vectors = squares.reshape(len(x), -1, width) + arrays("bias")
            first = jnp.broadcast_to(arrays("class").astype(vectors.dtype), (len(x), 1, width))
            return jnp.concatenate((first, vectors), axis=1) + arrays("positions")
        case neutral.FirstVector():
            return x[:, 0]
    return None


def _normalised(arrays: Arrays, name: str, x: Array, stride: int) -> Array:
    """A convolution and a norm over groups of its channels, in single precision whatever the rest is in."""
    kernel = arrays(f"{name}_kernel")
    edge = kernel.shape[0] // 2
    convolved = lax.conv_general_dilated(x, kernel, (stride, stride), [(edge, edge)] * 2, dimension_numbers=IMAGES)
    n, high, broad, channels = convolved.shape
    grouped = convolved.astype(jnp.float32).reshape(n, high, broad, groups_of(channels), -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(grouped - mean).mean((1, 2, 4), keepdims=True)
    normed = ((grouped - mean) * lax.rsqrt(variance + NORM_EPSILON)).reshape(convolved.shape).astype(x.dtype)
    return normed * arrays(f"{name}_scale") + arrays(f"{name}_shift")


def _residual(layer: neutral.Residual, arrays: Arrays, x: Array) -> Array:
    hidden = beside = x
    convolutions = layer.convolutions(x.shape[-1])
    last = max(name for name, *_ in convolutions if name != "skip")
    for name, _, _, _, stride in convolutions:
        if name == "skip":
            beside = _normalised(arrays, name, x, stride)
        else:
            hidden = _normalised(arrays, name, hidden, stride)
            hidden = hidden if name == last else jax.nn.relu(hidden)
    return jax.nn.relu(hidden + beside)


def _overlapping_pool(x: Array) -> Array:
    """The largest of shifted images: the gradient of `lax.reduce_window` is slow on CPU."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    high, broad = (neutral.strided(side, 3, 2) for side in x.shape[1:3])
    corners = [padded[:, i : i + 2 * high - 1 : 2, j : j + 2 * broad - 1 : 2] for i in range(3) for j in range(3)]
    largest = corners[0]
    for corner in corners[1:]:
        # Of equal ones the first gets the gradient, as in PyTorch; after ReLU many are.
        largest = jnp.where(corner > largest, corner, largest)
    return largest
