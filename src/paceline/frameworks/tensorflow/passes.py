"""What a run may ask of the passes of a TensorFlow step: several of them, blocks computed again, gradients clipped."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from paceline.contract.context import Context
from paceline.data.tree import Tree, map_tree, take
from paceline.workloads.base import named_layers

# What PyTorch adds to a norm before it divides by it.
NORM_EPSILON = 1e-6
# Given inputs and targets: the mean loss, and the gradient of each variable, None where it has no part in the loss.
Gradients = Callable[[Tree, Tree], tuple[tf.Tensor, list[tf.Tensor | None]]]


def in_passes(gradients: Gradients, passes: int, variables: list[keras.Variable]) -> Gradients:
    """Loss and gradients averaged over equal parts of a batch, in a loop: activations of one part exist at a time."""

    def averaged(inputs: Tree, targets: Tree) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        parts = map_tree(lambda whole: tf.reshape(whole, (passes, -1, *whole.shape[1:])), (inputs, targets))
        without: set[int] = set()

        def add(number: tf.Tensor, loss: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
            more, added = gradients(*take(parts, number))
            without.update(place for place, gradient in enumerate(added) if gradient is None)
            sums = [
                total if gradient is None else total + gradient for total, gradient in zip(sums, added, strict=True)
            ]
            return number + 1, loss + tf.cast(more, tf.float32), sums

        start = (tf.constant(0), tf.constant(0.0), [tf.zeros(variable.shape, variable.dtype) for variable in variables])
        _, loss, sums = tf.while_loop(
            lambda number, *_: number < passes, add, start, parallel_iterations=1, maximum_iterations=passes
        )
        means = [None if place in without else total / passes for place, total in enumerate(sums)]
        return loss / passes, means

    return averaged


def clip_sums(optimizer: keras.optimizers.Optimizer, most: float) -> None:
    """Has the optimizer scale gradients down to a global norm once they are summed over all replicas.

    Keras' own `global_clipnorm` is of each replica's gradients before that.
    """
    plain = optimizer._all_reduce_sum_gradients

    def clipped(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        gradients, variables = zip(*plain(pairs), strict=True)
        return list(zip(clip_gradients(gradients, most), variables, strict=True))

    optimizer._all_reduce_sum_gradients = clipped


def clip_gradients(gradients: Sequence[tf.Tensor | None], most: float) -> list[tf.Tensor | None]:
    """Scales gradients down to a global norm where theirs is larger."""
    norm = tf.linalg.global_norm([gradient for gradient in gradients if gradient is not None])
    factor = clip_factor(norm, most)
    return [None if gradient is None else gradient * factor for gradient in gradients]


def clip_factor(norm: tf.Tensor, most: float) -> tf.Tensor:
    """What gradients of this norm are to be multiplied with."""
    return tf.minimum(1.0, most / (norm + NORM_EPSILON))


def recompute(context: Context, model: keras.Model) -> None:
    """Has the blocks of a built-in model compute their activations again in the backward pass, if the run says so.

    A layer's `call` is replaced rather than the layer wrapped, so that no variable changes its path.
    """
    if context.spec.recompute == "none":
        return
    for name, layer, _ in named_layers(context.model.layers, context.data.input_shape):
        if getattr(layer, "heads", None) is not None:
            block = model.get_layer(name)
            block.call = tf.recompute_grad(block.call)
