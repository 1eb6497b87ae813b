"""Where the parts of split layers lie on a mesh: for the neutral layers, and for a user's model as its `plan` says.

A kernel that is split along a dimension inside of another (channels of a flattened image, heads of queries, keys and
values together) is stored with that dimension taken apart, so that XLA can divide it evenly and send nothing for it.
"""

from typing import Any

import jax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.contract.context import Context
from paceline.costs.layers import ArraySplit
from paceline.costs.splits import Rows, Split
from paceline.errors import ModelError
from paceline.frameworks.jax.group import WORKERS
from paceline.frameworks.jax.training import Layout, own_pair, path_name
from paceline.workloads.base import model_facts, named_layers
from paceline.workloads.layers import QUERY_KEY_VALUE, Flatten
from paceline.workloads.own import build_own, call_own

Shape = tuple[int, ...]
PARTS = ("columns", "rows")


def split_layout(context: Context, rows: Rows, mesh: Mesh) -> Layout:
    """All devices in one row, each with a part of every layer that divides."""
    if context.model.own is not None:
        return Layout(mesh, batch_side=None, part=_own_parts(context, rows.ways))
    layers, shape = context.model.layers, context.data.input_shape
    splits = {split.layer.name: split for split in rows.split(model_facts(layers, shape))}
    inner = _inner_sizes(context, splits)

    def fold(name: str, stored: Shape) -> Shape:
        layer, _, array = name.partition(".")
        size = inner.get(name)
        return stored if size is None else _folded(splits[layer].array_split(array), stored, size)

    def part(name: str, stored: Shape) -> PartitionSpec:
        layer, _, array = name.partition(".")
        return _partition(splits[layer], array, len(stored))

    def place(name: str, where: str, x: Array) -> Array:
        split = splits[name]
        divided = {
            "input": split.takes_split and not split.gathers_input, "middle": False, "output": split.gives_split,
        }[where]  # fmt: skip
        if where == "output" and split.gathers_output:
            # First apart, so that its gradient is taken apart too and the whole kernel is never needed.
            x = lax.with_sharding_constraint(x, last_side(x.ndim))
        return lax.with_sharding_constraint(x, last_side(x.ndim) if divided else NamedSharding(mesh, PartitionSpec()))

    def last_side(dimensions: int) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * (dimensions - 1), WORKERS))

    return Layout(mesh, batch_side=None, part=part, place=place if rows.ways > 1 else Layout.place, fold=fold)


def _inner_sizes(context: Context, splits: dict[str, Split]) -> dict[str, int]:
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


def _partition(split: Split, array: str, dimensions: int) -> PartitionSpec:
    """The sides of one array's dimensions; rows and, where they are taken apart, heads are the one before the last."""
    match split.array_split(array):
        case "whole":
            return PartitionSpec()
        case "columns":
            return PartitionSpec(*[None] * (dimensions - 1), WORKERS)
    return PartitionSpec(*[None] * (dimensions - 2), WORKERS, None)


def _own_parts(context: Context, ways: int) -> Any:
    """The partition of each of the user's parameters: by its last dimension (columns) or the one before (rows)."""
    user_model = context.model.own
    assert user_model is not None and user_model.plan is not None
    params, _ = own_pair(context, build_own(user_model))
    shapes = {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    plan = _checked_plan(user_model.label, user_model.plan, params, shapes, ways)

    def part(name: str, shape: Shape) -> PartitionSpec:
        if name not in plan or ways == 1:
            return PartitionSpec()
        dimension = _dimension(plan[name], shape)
        return PartitionSpec(*[None] * dimension, WORKERS)

    return part


def _dimension(part: str, shape: Shape) -> int:
    return len(shape) - 1 if part == "columns" else max(0, len(shape) - 2)


def _checked_plan(label: str, function: Any, params: Any, shapes: dict[str, Shape], ways: int) -> dict[str, str]:
    what = f"plan(params) of {label}"
    returned = call_own(what, function, params)
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
