"""Where the arrays of a JAX run lie on a mesh of devices: parameters, what the optimizer keeps, batches."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.frameworks.jax.model import Place
from paceline.frameworks.jax.optimizer import Tree
from paceline.frameworks.jax.passes import BatchSide, sides_of


@dataclass(frozen=True)
class Layout:
    """Where arrays lie on a mesh: the side over which batches are divided, and the part of each parameter."""

    mesh: Mesh
    batch_side: BatchSide
    # The partition of a parameter, given its name and shape.
    part: Callable[[str, tuple[int, ...]], PartitionSpec] = lambda _name, _shape: PartitionSpec()
    # Whether divided parameters are put together before they are used: all of them, or as far as this partition says.
    gathers: bool = False
    gathered_part: Callable[[str, tuple[int, ...]], PartitionSpec] = lambda _name, _shape: PartitionSpec()
    # Whether a device can take the gradients of its share by itself, so that those of several passes are sent once.
    shares_apart: bool = True
    # Puts activations where they belong; see `model.Place`.
    place: Place = lambda _name, _where, x: x
    # A parameter's shape as it is stored, given its name and neutral shape.
    fold: Callable[[str, tuple[int, ...]], tuple[int, ...]] = lambda _name, shape: shape

    def on(self, *sides: BatchSide) -> NamedSharding:
        """The sharding of an array whose dimensions are divided over these sides of the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*sides))

    @property
    def batch_ways(self) -> int:
        """Over how many devices a batch is divided."""
        return math.prod(self.mesh.shape[side] for side in sides_of(self.batch_side))

    def of_params(self, params: Tree) -> Tree:
        """The sharding of each parameter."""
        return self._shardings(params, self.part)

    def of_gathered(self, params: Tree) -> Tree:
        """The sharding of each parameter where it is used."""
        return self._shardings(params, self.gathered_part if self.gathers else self.part)

    def _shardings(self, params: Tree, part: Callable[[str, tuple[int, ...]], PartitionSpec]) -> Tree:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, part(path_name(path), leaf.shape)), params
        )


def path_name(path: Any) -> str:
    """Keys of a tree as one name: block.0.kernel."""
    return ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def put(array: np.ndarray | Array, sharding: NamedSharding) -> Array:
    """Puts this process's part of an array on its devices; all processes have the same array."""
    if isinstance(array, Array):  # it has been put there
        return array
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def state_shardings(params: Tree, shardings: Tree, state: Tree, whole: NamedSharding) -> Tree:
    """An array of the optimizer that stands for a parameter lies where that parameter does, any other everywhere."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    places = list(zip(leaves, jax.tree.leaves(shardings), strict=True))

    def place(path: Any, leaf: Any) -> NamedSharding:
        for (param_path, param), sharding in places:
            if tuple(path[len(path) - len(param_path) :]) == tuple(param_path) and leaf.shape == param.shape:
                return sharding
        return whole

    return jax.tree_util.tree_map_with_path(place, state)
