"""A Keras model whose variables Keras itself divides over a mesh of JAX devices, and the step that trains it.

`keras.distribution.ModelParallel` places variables by a map from their paths. A path that matches nothing is silently
left whole, so the map is made from the paths of the model as it was built, and what Keras made of it is looked at.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from paceline.contract.context import Context
from paceline.costs.splits import Rows
from paceline.errors import ModelError
from paceline.frameworks.jax.instrumentation import jax_job
from paceline.frameworks.jax.layout import Layout
from paceline.frameworks.jax.network import Network
from paceline.frameworks.jax.optimizer import Transformation, Tree
from paceline.frameworks.jax.training import JaxJob
from paceline.frameworks.keras.model import build_layers, build_model, loss_function, named_variables, set_precision
from paceline.frameworks.keras.optimizer import without_scheduler
from paceline.workloads.base import model_facts
from paceline.workloads.user_model import call_user_code

BATCH, MODEL = "batch", "model"
Axes = tuple[str | None, ...]
PARTS = ("columns", "rows")


def open_parallel(context: Context, rows: Rows) -> JaxJob:
    """Builds the model under the distribution and hands its variables to the compiled step."""
    if keras.backend.backend() != "jax":
        raise RuntimeError(f"Keras runs on {keras.backend.backend()}, where distributions silently do nothing")
    axes = layout_axes(context, rows)
    # The same layers get the same names again: paths of variables are what the map goes by.
    keras.utils.clear_session(free_memory=False)
    mesh = keras.distribution.DeviceMesh(
        (rows.count, rows.ways), [BATCH, MODEL], keras.distribution.list_devices()[: rows.count * rows.ways]
    )
    layout_map = keras.distribution.LayoutMap(mesh)
    for path, sides in axes.items():
        layout_map[path] = sides
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name=BATCH))
    model = _build(context)
    check_placed(model, axes, rows.ways)
    variables = trained_variables(context, model)
    parts = {name: PartitionSpec(*axes.get(variable.path, ())) for name, variable in variables.items()}
    # What layers remember beside their weights is that of a whole batch, not of a device's share.
    layout = Layout(mesh.backend_mesh, batch_side=BATCH, part=lambda name, _shape: parts[name], shares_apart=False)
    job = jax_job(
        context,
        layout,
        network=_network(context, model, variables),
        optimizer=_user_optimizer(context, variables),
        divided=rows.ways > 1,
    )
    for variable in model.variables:
        # The job has them now; Keras' own trainer lets go of them in the same way.
        variable._value = None
    return job


def _build(context: Context) -> keras.Model:
    if context.user_model is not None:
        return build_model(context)
    # Keras' way to set a seed imports TensorFlow where it is installed, and given weights need none.
    set_precision(context.spec)
    return build_layers(context.model.layers, context.data.input_shape, context.starting_weights())


def layout_axes(context: Context, rows: Rows) -> dict[str, Axes]:
    """The sides of the mesh along which each divided variable lies, by the variable's path."""
    if rows.ways == 1:
        return {}
    model = _build(context)
    if context.model.user_model is not None:
        return _own_axes(context, model, rows.ways)
    shape = context.data.input_shape
    variables = named_variables(model, context.model.layers, shape)
    axes: dict[str, Axes] = {}
    for split in rows.split(model_facts(context.model.layers, shape)):
        for array, stored in split.layer.arrays:
            part = split.array_split(array)
            if part != "whole":
                axes[variables[f"{split.layer.name}.{array}"].path] = _axes(part, len(stored))
    return axes


def _axes(part: str, dimensions: int) -> Axes:
    """Rows are the dimension before the last; columns are the last, and so are heads, which Keras cannot tell apart."""
    last = [None] * (dimensions - 1)
    return (*last[:-1], MODEL, None) if part == "rows" else (*last, MODEL)


def _own_axes(context: Context, model: keras.Model, ways: int) -> dict[str, Axes]:
    """Divides variables as the file's `plan` says, or every kernel by columns where they divide."""
    user_model = context.model.user_model
    assert user_model is not None
    shapes = {variable.path: tuple(variable.shape) for variable in model.trainable_variables}
    if user_model.plan is None:
        plan = {path: "columns" for path, shape in shapes.items() if len(shape) > 1 and shape[-1] % ways == 0}
    else:
        plan = _checked_plan(user_model.label, user_model.plan, model, shapes)
    if not plan:
        raise ModelError(
            f"no kernel of {user_model.label} divides over {ways} workers; use another number, or knob tensor"
        )
    for path, part in plan.items():
        size = shapes[path][-1 if part == "columns" or len(shapes[path]) == 1 else -2]
        if size % ways:
            raise ModelError(f"{path} of {user_model.label} has {size} {part}, which do not divide over {ways} workers")
    return {path: _axes(part if len(shapes[path]) > 1 else "columns", len(shapes[path])) for path, part in plan.items()}


def _checked_plan(label: str, function: Any, model: keras.Model, shapes: Mapping[str, Any]) -> dict[str, str]:
    what = f"plan(model) of {label}"
    returned = call_user_code(what, function, model)
    if not isinstance(returned, dict) or not returned:
        raise ModelError(f'{what} must return {{"path of a variable": "columns" or "rows"}}, and returned {returned!r}')
    plan: dict[str, str] = {}
    for pattern, part in returned.items():
        if part not in PARTS:
            raise ModelError(f'{what} gives {part!r} for {pattern}; give "columns" or "rows"')
        matching = [path for path in shapes if path == pattern or re.fullmatch(pattern, path)]
        if not matching:
            raise ModelError(f"{what} names {pattern!r}, which no variable's path matches; paths: {', '.join(shapes)}")
        plan |= {path: str(part) for path in matching}
    return plan


def check_placed(model: keras.Model, axes: Mapping[str, Axes], ways: int) -> None:
    """Every variable of the map lies as the map says: Keras says nothing of one that it did not find."""
    variables = {variable.path: variable for variable in model.variables}
    lost = [path for path in axes if path not in variables]
    if lost:
        raise ModelError(f"a second build of the model has no variable {lost[0]}; build the same layers each time")
    for path, sides in axes.items():
        value = variables[path].value
        wanted = NamedSharding(value.sharding.mesh, PartitionSpec(*sides))
        part = value.addressable_shards[0].data.size
        if not value.sharding.is_equivalent_to(wanted, value.ndim) or part * ways != value.size:
            raise RuntimeError(f"Keras left {path} as {value.sharding} where {sides} was asked for")


def trained_variables(context: Context, model: keras.Model) -> dict[str, keras.Variable]:
    """Trained variables by the names that weights are kept under."""
    if context.model.user_model is None:
        return named_variables(model, context.model.layers, context.data.input_shape)
    return {variable.path: variable for variable in model.trainable_variables}


def _network(context: Context, model: keras.Model, variables: dict[str, keras.Variable]) -> Network:
    names = {id(variable): name for name, variable in variables.items()}
    trained = [names[id(variable)] for variable in model.trainable_variables]
    paths = [variable.path for variable in model.non_trainable_variables]

    def forward(params: Tree, buffers: Tree, inputs: Any, trains: bool) -> tuple[Any, Tree]:
        outputs, after = model.stateless_call(
            [params[name] for name in trained], [buffers[path] for path in paths], inputs, training=trains
        )
        return outputs, dict(zip(paths, after, strict=True))

    values = {name: variable.value for name, variable in variables.items()}
    buffers = {variable.path: np.asarray(variable.value) for variable in model.non_trainable_variables}
    return Network(values, forward, loss_function(context, model), buffers)


def _user_optimizer(context: Context, variables: dict[str, keras.Variable]) -> Transformation | None:
    """The user's Keras optimizer in the form of a pair of functions; None where there is none."""
    user_model = context.model.user_model
    if user_model is None or user_model.optimizer is None:
        return None
    names, ordered = list(variables), list(variables.values())
    optimizer = without_scheduler(user_model.label, user_model.optimizer(ordered))
    optimizer.build(ordered)
    starts = [np.asarray(variable.value) for variable in optimizer.variables]

    def update(gradients: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        after, state = optimizer.stateless_apply(state, [gradients[n] for n in names], [params[n] for n in names])
        return {name: new - params[name] for name, new in zip(names, after, strict=True)}, state

    return Transformation(lambda _params: [jax.numpy.asarray(start) for start in starts], update)
