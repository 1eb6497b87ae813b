"""Neutral layers as plain TensorFlow functions of arrays that may be split over a mesh of devices.

Keras 3 does not run on DTensor, so the layers are written out. A function is written as for one device; TensorFlow adds
the collectives that the arrays' layouts ask for. Heads, columns and rows are divided as Shoeybi et al., "Megatron-LM",
2019.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from paceline.costs.splits import Split
from paceline.workloads.base import Layers, named_layers
from paceline.workloads.layers import NORM_EPSILON, Block, Conv, Dense, Embed, Flatten, Layer, MaxPool, Norm, Shape

BATCH, MODEL, WHOLE = "batch", "model", dtensor.UNSHARDED
# What a masked score is lowered by: its softmax is zero, and no infinities meet.
MASKED = -1e9


@dataclass(frozen=True)
class Kept:
    """How an array of the neutral layout is kept: its shape, with heads apart, and which dimension is split."""

    neutral: Shape
    shape: Shape
    split_at: int | None = None

    def specs(self, ways: int) -> list[str]:
        """One word for each dimension, as a layout has them."""
        return [MODEL if at == self.split_at and ways > 1 else WHOLE for at in range(len(self.shape))]


def kept_arrays(layers: Layers, shape: Shape, splits: tuple[Split, ...]) -> dict[str, Kept]:
    """Of every neutral weight."""
    return {
        f"{name}.{part}": _kept(layer, part, weight.shape, split)
        for (name, layer, given), split in zip(named_layers(layers, shape), splits, strict=True)
        for part, weight in layer.weights(given).items()
    }


def _kept(layer: Layer, part: str, shape: Shape, split: Split) -> Kept:
    if isinstance(layer, Block):
        heads, width = layer.heads, shape[-1] // 3
        places = {
            "qkv_kernel": ((shape[0], 3, heads, width // heads), 2),
            "qkv_bias": ((3, 1, heads, 1, width // heads), 2),
            "out_kernel": ((heads, shape[0] // heads, shape[-1]), 0),
            "up_kernel": (shape, 1),
            "up_bias": (shape, 0),
            "down_kernel": (shape, 0),
        }
        kept, at = places.get(part, (shape, None))
        return Kept(shape, kept, at if split.part == "heads" else None)
    at = {"columns": len(shape) - 1, "rows": 0 if part == "kernel" else None}.get(split.part)
    return Kept(shape, shape, at)


@dataclass(frozen=True)
class Network:
    """The forward pass, on a mesh of devices."""

    layers: Layers
    shape: Shape
    splits: tuple[Split, ...]
    mesh: dtensor.Mesh

    def __call__(self, arrays: Mapping[str, tf.Tensor], x: tf.Tensor, divided: bool) -> tf.Tensor:
        """Outputs of a batch, whose samples are divided over the mesh or all on every device."""
        steps, waiting = named_layers(self.layers, self.shape), False
        before_pool = {name for (name, _, _), (_, after, _) in pairwise(steps) if isinstance(after, MaxPool)}
        for (name, layer, _), split in zip(steps, self.splits, strict=True):
            own = {key.partition(".")[2]: array for key, array in arrays.items() if key.partition(".")[0] == name}
            x = _apply(layer, own, x)
            if split.gathers_output:
                specs = [BATCH if divided else WHOLE, *[WHOLE] * (len(x.shape) - 1)]
                x = dtensor.relayout(x, dtensor.Layout(specs, self.mesh))
            # Pooling before ReLU gives the same and leaves it a quarter of the work.
            rectified = waiting or isinstance(layer, Conv) or (isinstance(layer, Dense) and layer.relu)
            waiting = rectified and name in before_pool
            x = tf.nn.relu(x) if rectified and not waiting else x
        return x


def _apply(layer: Layer, own: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:  # noqa: PLR0911 - one per kind
    match layer:
        case Conv():
            return tf.nn.conv2d(x, own["kernel"], 1, "SAME") + own["bias"]
        case MaxPool(size):
            return tf.nn.max_pool2d(x, size, size, "VALID")
        case Flatten():
            return tf.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
        case Dense():
            return _dense(x, own["kernel"], own["bias"])
        case Embed():
            return tf.gather(own["tokens"], x) + own["positions"]
        case Norm():
            return _norm(x, own["scale"], own["shift"])
        case Block():
            return _block(own, x)
    raise TypeError(f"no TensorFlow function for {type(layer).__name__}")


def _dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.einsum("ni,io->no" if len(x.shape) == 2 else "nli,io->nlo", x, kernel) + bias


def _norm(x: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred * tf.math.rsqrt(variance + NORM_EPSILON) * scale + shift


def _block(own: Mapping[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """With heads as a dimension of their own, so that each device has whole ones."""
    normed = _norm(x, own["norm1_scale"], own["norm1_shift"])
    # n samples, l positions, w width; t of queries, keys and values; h heads, d numbers in each.
    parts = tf.einsum("nlw,wthd->tnhld", normed, own["qkv_kernel"]) + own["qkv_bias"]
    queries, keys, values = tf.unstack(parts, axis=0)
    scores = tf.matmul(queries, keys, transpose_b=True) * (queries.shape[-1] ** -0.5)
    length = queries.shape[-2]
    scores += np.triu(np.full((length, length), MASKED, np.float32), 1)
    attended = tf.matmul(tf.nn.softmax(scores), values)
    x = x + tf.einsum("nhld,hdw->nlw", attended, own["out_kernel"]) + own["out_bias"]
    normed = _norm(x, own["norm2_scale"], own["norm2_shift"])
    raised = tf.nn.gelu(_dense(normed, own["up_kernel"], own["up_bias"]), approximate=True)
    return x + _dense(raised, own["down_kernel"], own["down_bias"])
