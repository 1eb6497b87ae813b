"""The structure of a user's pair of JAX functions in words: what its identity covers beside its files."""

from typing import Any

import jax


def describe(pair: Any) -> list[str]:
    """Names, shapes and types of its parameters, without making them."""
    init, _ = pair
    try:
        parameters = jax.eval_shape(init, jax.random.key(0))
    except Exception:  # what cannot be followed is made
        parameters = init(jax.random.key(0))
    leaves, structure = jax.tree.flatten(parameters)
    return [str(structure), *(f"{leaf.shape} {leaf.dtype}" for leaf in leaves)]
