"""The gradients of a step: in one pass or in several that are averaged, and scaled down where their norm is too large.

Passes follow each other in a loop, so that activations of one alone exist at a time. Devices that share a batch each
average their own passes (`shard_map`), and nothing is sent before the last.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from paceline.frameworks.jax.optimizer import Tree

# What PyTorch adds to a norm before it divides by it.
NORM_EPSILON = 1e-6
# The sides of a mesh over which a batch is divided: one, several together, or none.
BatchSide = str | tuple[str, ...] | None
# Parameters, buffers (arrays that change and are not trained) and samples ─► loss, buffers after the pass, gradients.
GradientsOf = Callable[[Tree, Tree, Any], tuple[Array, Tree, Tree]]


def sides_of(side: BatchSide) -> tuple[str, ...]:
    """The sides of a mesh as a tuple of names."""
    return () if side is None else (side,) if isinstance(side, str) else side


def in_passes(order: np.ndarray, passes: int, ways: int) -> np.ndarray:
    """(steps, batch) as (steps, passes, part): each of `ways` devices has the samples that it has in a single pass."""
    steps = len(order)
    return order.reshape(steps, ways, passes, -1).swapaxes(1, 2).reshape(steps, passes, -1)


def mean_of_passes(gradients_of: GradientsOf, params: Tree, buffers: Tree, passes: Any) -> tuple[Array, Tree, Tree]:
    """Loss and gradients averaged over passes of equal size; `passes` has them along its first dimension."""
    count = jax.tree.leaves(passes)[0].shape[0]

    def add(carried: tuple[Tree, Array, Tree], samples: Any) -> tuple[tuple[Tree, Array, Tree], None]:
        buffers, loss, gradients = carried
        more, buffers, added = gradients_of(params, buffers, samples)
        return (buffers, loss + more, jax.tree.map(jnp.add, gradients, added)), None

    start = (buffers, jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (buffers, loss, gradients), _ = lax.scan(add, start, passes)
    return loss / count, buffers, jax.tree.map(lambda gradient: gradient / count, gradients)


def mean_over_devices(mesh: Mesh, side: BatchSide, function: Callable[..., Any], *arguments: Any, shared: Any) -> Any:
    """What a function of each device's part of `shared` gives, averaged over the devices along a side of the mesh.

    `arguments` are whole along that side, and the last dimension of `shared` is divided over it.
    """
    sides = sides_of(side)
    part = PartitionSpec(*[None] * (shared.ndim - 1), side)
    alone = jax.shard_map(
        lambda *parts: jax.tree.map(partial(_mean, sides), function(*parts)),
        mesh=mesh,
        in_specs=(*(PartitionSpec() for _ in arguments), part),
        out_specs=PartitionSpec(),
        axis_names=set(sides),
        # Or else the gradients of parameters that all devices have would be summed in each pass.
        check_vma=False,
    )
    return alone(*arguments, shared)


def _mean(sides: tuple[str, ...], leaf: Array) -> Array:
    """The mean over devices; whole numbers, such as keys, are the same on all."""
    mean: Array = lax.pmean(leaf, sides) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    return mean


def clipped(gradients: Tree, most: float) -> Tree:
    """Gradients scaled down to a global norm where theirs is larger; XLA sums the squares of parts over devices."""
    squares = sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(gradients))
    factor = jnp.minimum(1.0, most / (jnp.sqrt(squares) + NORM_EPSILON))
    return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), gradients)
