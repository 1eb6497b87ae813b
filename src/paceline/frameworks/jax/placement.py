"""Where arrays lie on a mesh that splits layers, divides what is left of them, and divides the batch.

A kernel that is split along a dimension inside of another (channels of a flattened image, heads of queries, keys and
values together) is stored with that dimension taken apart, so that XLA can divide it evenly and send nothing for it.
A user's model is split as its `plan` says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.contract.context import Context
from paceline.costs.jax import divided_dimension, split_dimension
from paceline.costs.layers import ArraySplit
from paceline.costs.splits import Split, split_layers
from paceline.errors import ModelError
from paceline.frameworks.jax.layout import Layout, path_name
from paceline.frameworks.jax.network import arrays_of
from paceline.frameworks.jax.passes import BatchSide
from paceline.frameworks.jax.user_network import user_network
from paceline.workloads.base import model_facts, named_layers
from paceline.workloads.layers import QUERY_KEY_VALUE, Flatten
from paceline.workloads.user_model import build_user_model, call_user_code

Shape = tuple[int, ...]
Part = Callable[[str, Shape], PartitionSpec]
PARTS = ("columns", "rows")


@dataclass(frozen=True)
class Sides:
    """A mesh, and what its sides are for."""

    mesh: Mesh
    # Along which layers are split.
    tensor: str
    # Along which batches are divided.
    batch: BatchSide = None
    # Along which what is left of each array is divided; it is gathered for use.
    shard: str | None = None

    def ways(self, side: str | None) -> int:
        """Devices along a side."""
        return 1 if side is None else int(self.mesh.shape[side])

    def on(self, *sides: BatchSide) -> NamedSharding:
        """The sharding of an activation whose first dimension is the batch; each device may have its share alone."""
        here = jax.sharding.get_abstract_mesh()
        if here.empty:
            return NamedSharding(self.mesh, PartitionSpec(self.batch, *sides))
        return NamedSharding(here, PartitionSpec(None, *sides))

    def sharded(self, dimensions: int, split: int | None, divided: int | None) -> PartitionSpec:
        """The sharding of an array with these dimensions split and divided."""
        names = {split: self.tensor, divided: self.shard}
        return PartitionSpec(*(names.get(dimension) for dimension in range(dimensions)))


def split_layout(context: Context, sides: Sides, split_convolutions: bool = True) -> Layout:
    """Every layer that divides is split along one side of the mesh, arrays and batches are divided along others."""
    if context.model.user_model is not None:
        split, divided = _user_parts(context, sides)
        return Layout(sides.mesh, sides.batch, part=divided, gathers=sides.shard is not None, gathered_part=split)
    ways = sides.ways(sides.tensor)
    facts = model_facts(context.model.layers, context.data.input_shape)
    splits = {split.layer.name: split for split in split_layers(facts, ways, split_convolutions)}
    inner = _inner_sizes(context, splits)

    def fold(name: str, shape: Shape) -> Shape:
        layer, _, array = name.partition(".")
        size = inner.get(name)
        return shape if size is None else _folded(splits[layer].array_split(array), shape, size)

    split, divided = _parts(sides, splits)
    return Layout(
        sides.mesh,
        sides.batch,
        part=divided,
        gathers=sides.shard is not None,
        gathered_part=split,
        place=_place(sides, splits) if ways > 1 else Layout.place,
        fold=fold,
    )


def _parts(sides: Sides, splits: Mapping[str, Split]) -> tuple[Part, Part]:
    """The partition of an array that is split alone, and of one that is divided too, by its name and stored shape."""
    neutral = {f"{name}.{array}": shape for name, split in splits.items() for array, shape in split.layer.arrays}
    shards = sides.ways(sides.shard)

    def split_alone(name: str, stored: Shape) -> PartitionSpec:
        return sides.sharded(len(stored), _split_where(name, stored), None)

    def divided_too(name: str, stored: Shape) -> PartitionSpec:
        how, shape = _how(splits, name), neutral[name]
        dimension = divided_dimension(shape, shards, other_than=split_dimension(how, len(shape)))
        # Rows that were taken apart are one dimension more before those that are not split.
        moved = len(stored) - len(shape) if how == "rows" and dimension is not None else 0
        return sides.sharded(len(stored), _split_where(name, stored), None if dimension is None else dimension + moved)

    def _split_where(name: str, stored: Shape) -> int | None:
        """Rows and, where they are taken apart, heads are the dimension before the last; columns are the last."""
        how = _how(splits, name)
        return {"whole": None, "columns": len(stored) - 1}.get(how, len(stored) - 2)

    return split_alone, divided_too


def _how(splits: Mapping[str, Split], name: str) -> ArraySplit:
    layer, _, array = name.partition(".")
    return splits[layer].array_split(array)


def _place(sides: Sides, splits: Mapping[str, Split]) -> Callable[[str, str, Array], Array]:
    """Puts activations where they belong: whole, or their last dimension split."""

    def place(name: str, where: str, x: Array) -> Array:
        split, whole = splits[name], [None] * (x.ndim - 1)
        apart = (*whole[:-1], sides.tensor)
        divided = {
            "input": split.takes_split and not split.gathers_input, "middle": False, "output": split.gives_split,
        }[where]  # fmt: skip
        if where == "output" and split.gathers_output:
            # First apart, so that its gradient is taken apart too and the whole kernel is never needed.
            x = lax.with_sharding_constraint(x, sides.on(*apart))
        return lax.with_sharding_constraint(x, sides.on(*(apart if divided else whole)))

    return place


def _inner_sizes(context: Context, splits: Mapping[str, Split]) -> dict[str, int]:
    """Arrays to store with a dimension taken apart: channels of a flattened image, heads."""
    sizes: dict[str, int] = {}
    channels: int | None = None
    for name, layer, input_shape in named_layers(context.model.layers, context.data.input_shape):
        split = splits[name]
        if isinstance(layer, Flatten):
            channels = input_shape[0]
        for array, _ in split.layer.arrays:
            how = split.array_split(array)
            if how == "heads":
                sizes[f"{name}.{array}"] = split.layer.heads or 1
            elif how == "rows" and channels is not None:
                sizes[f"{name}.{array}"] = channels
        channels = None if split.layer.arrays else channels
    return sizes


def _folded(how: ArraySplit, stored: Shape, size: int) -> Shape:
    if how == "rows":
        return (stored[0] // size, size, *stored[1:])
    return (*stored[:-1], QUERY_KEY_VALUE, size, stored[-1] // QUERY_KEY_VALUE // size)


def _user_parts(context: Context, sides: Sides) -> tuple[Part, Part]:
    """Parts of the user's parameters: split by the last dimension (columns) or the one before (rows)."""
    user_model, ways = context.model.user_model, sides.ways(sides.tensor)
    assert user_model is not None
    plan: dict[str, str] = {}
    if ways > 1:
        assert user_model.plan is not None
        inputs, _ = arrays_of(context, train=True)
        params = user_network(context, build_user_model(user_model), inputs).params
        shapes = {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        plan = _checked_plan(user_model.label, user_model.plan, params, shapes, ways)

    def split_where(name: str, shape: Shape) -> int | None:
        return _dimension(plan[name], shape) if name in plan else None

    def split_alone(name: str, shape: Shape) -> PartitionSpec:
        return sides.sharded(len(shape), split_where(name, shape), None)

    def divided_too(name: str, shape: Shape) -> PartitionSpec:
        split = split_where(name, shape)
        return sides.sharded(len(shape), split, divided_dimension(shape, sides.ways(sides.shard), other_than=split))

    return split_alone, divided_too


def _dimension(part: str, shape: Shape) -> int:
    return len(shape) - 1 if part == "columns" else max(0, len(shape) - 2)


def _checked_plan(label: str, function: Any, params: Any, shapes: dict[str, Shape], ways: int) -> dict[str, str]:
    what = f"plan(params) of {label}"
    returned = call_user_code(what, function, params)
    leaves = jax.tree_util.tree_leaves_with_path(returned)
    plan = {path_name(path): leaf for path, leaf in leaves}
    if not plan:
        raise ModelError(f'{what} must return {{"parameter": "columns" or "rows"}}, and returned {returned!r}')
    for name, part in plan.items():
        if name not in shapes:
            raise ModelError(f"{what} names {name!r}, which is no parameter; there are: {', '.join(shapes)}")
        if part not in PARTS:
            raise ModelError(f'{what} gives {part!r} for {name}; give "columns" or "rows"')
        shape = shapes[name]
        size = shape[_dimension(part, shape)] if shape else 1
        if size % ways:
            raise ModelError(
                f"{what}: {name} of shape {tuple(shape)} has {size} to split by {part}, "
                f"which do not divide over {ways} workers"
            )
    return {name: str(part) for name, part in plan.items()}
