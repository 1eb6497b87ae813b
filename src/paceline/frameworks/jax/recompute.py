"""Activations of a block that are computed again in the backward pass instead of kept: all, or all but products.

`jax.checkpoint`, which keeps the second computation apart from the first by a barrier. XLA on CPU takes barriers away
and then makes one computation of both: nothing would be saved there. So on CPU the second one waits for its gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from paceline.spec import Recompute

# A block's output, of its arrays and its input, whose first dimension is the batch.
Block = Callable[[dict[str, Any], Array], Array]


def recomputed(block: Block, kind: Recompute) -> Block:
    """The same block, which keeps its input, and with `selective` the products of its weights, attention aside."""
    if kind == "none":
        return block
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if kind == "selective" else None
    again: Block = jax.checkpoint(block, policy=policy)
    return _after_gradient(again) if jax.default_backend() == "cpu" else again


def _after_gradient(again: Block) -> Block:
    """A block whose backward pass computes from values that depend on the gradient, though they are the same."""

    def forward(arrays: dict[str, Any], x: Array) -> tuple[Array, Any]:
        output, pull_back = jax.vjp(again, arrays, x)
        return output, (pull_back, arrays)

    def backward(residuals: Any, gradient: Array) -> Any:
        pull_back, arrays = residuals
        weights = {leaf.shape for leaf in jax.tree.leaves(arrays)}
        return jax.tree.map(partial(_depending_on, gradient, weights), pull_back)(gradient)

    block: Any = jax.custom_vjp(again)
    block.defvjp(forward, backward)
    run: Block = block
    return run


def _depending_on(gradient: Array, weights: set[tuple[int, ...]], value: Array) -> Array:
    """A kept activation, plus nothing for each sample that has a gradient; weights as they are."""
    samples = gradient.shape[0]
    if value.shape in weights or samples not in value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    place = value.shape.index(samples)
    first = gradient.reshape(samples, -1)[:, 0]
    # Only a number that is none differs from itself.
    nothing = jnp.where(first == first, 0.0, jnp.nan).astype(value.dtype)  # noqa: PLR0124
    return value + nothing.reshape([samples if dimension == place else 1 for dimension in range(value.ndim)])
