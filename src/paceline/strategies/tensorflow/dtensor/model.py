"""Neutral layers as plain TensorFlow functions of arrays that may be split over a mesh of devices.

Keras 3 does not run on DTensor, so the layers are written out, each as for one device; TensorFlow adds the collectives
that the arrays' layouts ask for. Heads, columns and rows are divided as in Megatron-LM (Shoeybi et al., 2019).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from paceline.costs.layers import ArraySplit
from paceline.costs.splits import Split
from paceline.workloads import layers as neutral
from paceline.workloads.base import Layers, named_layers, relu_places
from paceline.workloads.layers import NORM_EPSILON, QUERY_KEY_VALUE, Layer, Shape

BATCH, MODEL, WHOLE = "batch", "model", dtensor.UNSHARDED
# What a masked score is lowered by: its softmax is zero, and no infinities meet.
MASKED = -1e9


@dataclass(frozen=True)
class StoredArray:
    """How an array of the neutral layout is kept: its shape, with heads apart, and which dimension is split."""

    neutral: Shape
    shape: Shape
    divided_dimension: int | None = None

    def specs(self, ways: int) -> list[str]:
        """One word for each dimension, as a layout has them."""
        return [MODEL if at == self.divided_dimension and ways > 1 else WHOLE for at in range(len(self.shape))]


def stored_arrays(layers: Layers, shape: Shape, splits: tuple[Split, ...]) -> dict[str, StoredArray]:
    """How each array of the model is kept, by its neutral name."""
    return {
        f"{name}.{array}": StoredArray(sizes, stored, _divided_dimension(split.array_split(array), len(stored)))
        for (name, layer, _), split in zip(named_layers(layers, shape), splits, strict=True)
        for array, sizes in split.layer.arrays
        for stored in [_stored_shape(layer, array, sizes)]
    }


def _stored_shape(layer: Layer, array: str, shape: Shape) -> Shape:
    """The neutral shape, but with the heads of a block as a dimension of their own."""
    if not isinstance(layer, neutral.Block):
        return shape
    heads, width = layer.heads, shape[-1] // QUERY_KEY_VALUE
    return {
        "qkv_kernel": (shape[0], QUERY_KEY_VALUE, heads, width // heads),
        "qkv_bias": (QUERY_KEY_VALUE, 1, heads, 1, width // heads),
        "out_kernel": (heads, shape[0] // heads, shape[-1]),
    }.get(array, shape)


def _divided_dimension(how: ArraySplit, dimensions: int) -> int | None:
    """Heads are the third dimension where they have one of their own."""
    return {"whole": None, "columns": dimensions - 1, "rows": 0, "heads": 2}[how]


@dataclass(frozen=True)
class Network:
    """The forward pass, on a mesh of devices."""

    layers: Layers
    shape: Shape
    splits: tuple[Split, ...]
    mesh: dtensor.Mesh

    def __call__(self, arrays: Mapping[str, tf.Tensor], x: tf.Tensor, divided: bool) -> tf.Tensor:
        """Outputs of a batch, whose samples are divided over the mesh or all on every device."""
        steps, relus = named_layers(self.layers, self.shape), relu_places(self.layers, self.shape)
        for (name, layer, _), split in zip(steps, self.splits, strict=True):
            x = _apply(layer, {array: arrays[f"{name}.{array}"] for array, _ in split.layer.arrays}, x)
            if split.gathers_output:
                specs = [BATCH if divided else WHOLE, *[WHOLE] * (len(x.shape) - 1)]
                x = dtensor.relayout(x, dtensor.Layout(specs, self.mesh))
            x = tf.nn.relu(x) if name in relus else x
        return x


def _apply(layer: Layer, arrays: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:  # noqa: PLR0911 - one per kind
    match layer:
        case neutral.Conv():
            return tf.nn.conv2d(x, arrays["kernel"], 1, "SAME") + arrays["bias"]
        case neutral.MaxPool(size):
            return tf.nn.max_pool2d(x, size, size, "VALID")
        case neutral.Flatten():
            return tf.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
        case neutral.Dense():
            return _dense(x, arrays["kernel"], arrays["bias"])
        case neutral.Embed():
            return tf.gather(arrays["tokens"], x) + arrays["positions"]
        case neutral.Norm():
            return _norm(x, arrays["scale"], arrays["shift"])
        case neutral.Block():
            return _block(arrays, x)
    raise TypeError(f"no TensorFlow function for {type(layer).__name__}")


def _dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.einsum("ni,io->no" if len(x.shape) == 2 else "nli,io->nlo", x, kernel) + bias


def _norm(x: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred * tf.math.rsqrt(variance + NORM_EPSILON) * scale + shift


def _block(arrays: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """A transformer block whose heads are a dimension of their own, so that each device has whole ones."""
    normed = _norm(x, arrays["norm1_scale"], arrays["norm1_shift"])
    # n samples, l positions, w width; t of queries, keys and values; h heads, d numbers in each.
    parts = tf.einsum("nlw,wthd->tnhld", normed, arrays["qkv_kernel"]) + arrays["qkv_bias"]
    queries, keys, values = tf.unstack(parts, axis=0)
    scores = tf.matmul(queries, keys, transpose_b=True) * (queries.shape[-1] ** -0.5)
    length = queries.shape[-2]
    scores += np.triu(np.full((length, length), MASKED, np.float32), 1)
    attended = tf.matmul(tf.nn.softmax(scores), values)
    x = x + tf.einsum("nhld,hdw->nlw", attended, arrays["out_kernel"]) + arrays["out_bias"]
    normed = _norm(x, arrays["norm2_scale"], arrays["norm2_shift"])
    raised = tf.nn.gelu(_dense(normed, arrays["up_kernel"], arrays["up_bias"]), approximate=True)
    return x + _dense(raised, arrays["down_kernel"], arrays["down_bias"])
