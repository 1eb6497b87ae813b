"""A Keras model cut into stages: built-in models and any `keras.Sequential` by cost, others by the user's `stages`.

Two samples are sent through to be sure that the stages in a row give what the model gives.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.contract.context import Context
from paceline.costs.cuts import cut, most_stages
from paceline.errors import ModelError
from paceline.frameworks.keras.model import keras_inputs
from paceline.workloads.base import model_facts
from paceline.workloads.user_model import UserModel, call_user_code

TRIED_SAMPLES = 2
# The stages make the same operations as the whole, so only the order of sums may differ.
RELATIVE, ABSOLUTE = 1e-3, 1e-4


def cut_model(context: Context, model: keras.Model, count: int) -> list[keras.Model]:
    """All stages, made of the model's own layers; a model that cannot be cut so is a `ModelError`."""
    user_model, label = context.user_model, context.model_label
    inputs = tf.constant(keras_inputs(context, context.data.train_inputs[:TRIED_SAMPLES]))
    if user_model is not None and user_model.stages is not None:
        stages = _user_stages(user_model, user_model.stages, model, count)
    elif isinstance(model, keras.Sequential):
        stages = _stretches(context, model, inputs, count, label)
    else:
        raise ModelError(f"{label} is no keras.Sequential; add a function stages(model, count) that returns its stages")
    _check_variables(label, model, stages)
    _check_outputs(label, model, stages, inputs)
    return stages


def _stretches(
    context: Context, model: keras.Sequential, inputs: tf.Tensor, count: int, label: str
) -> list[keras.Model]:
    """Stages with equal counted work: counts of the neutral layers, or of TensorFlow for a user's model."""
    facts = {layer.name: layer.forward_flops for layer in _facts(context)}
    units: list[list[keras.layers.Layer]] = []
    for layer in _plain(model):
        # What a neutral layer does after its Keras layer, its ReLU, stays with it.
        if facts and layer.name not in facts and units:
            units[-1].append(layer)
        else:
            units.append([layer])
    trainable = [any(layer.trainable_variables for layer in unit) for unit in units]
    if count > most_stages(trainable):
        raise ModelError(
            f"{label} has {most_stages(trainable)} layers to cut between and {count} stages were asked for; "
            f"use fewer workers"
        )
    costs = [facts[unit[0].name] for unit in units] if facts else _counted(units, inputs)
    stages, activation = [], inputs
    for number, stretch in enumerate(cut(costs, trainable, count)):
        layers = [layer for index in stretch for layer in units[index]]
        stage = _sequence(layers, activation, f"stage_{number}")
        activation = stage(activation, training=False)
        stages.append(stage)
    return stages


def _sequence(layers: Sequence[keras.layers.Layer], example: tf.Tensor, name: str) -> keras.Sequential:
    """Layers of another model as one of their own, for inputs such as these."""
    return keras.Sequential([keras.Input(example.shape[1:], dtype=example.dtype.name), *layers], name=name)


def _facts(context: Context) -> Sequence[Any]:
    return () if context.user_model else model_facts(context.model.layers, context.data.input_shape).layers


def _plain(model: keras.Sequential) -> list[keras.layers.Layer]:
    """Layers in order, those of sequences within too."""
    layers: list[keras.layers.Layer] = []
    for layer in model.layers:
        layers += _plain(layer) if type(layer) is keras.Sequential else [layer]
    return layers


def _counted(units: Sequence[Sequence[keras.layers.Layer]], inputs: tf.Tensor) -> list[float]:
    """TensorFlow counts products, convolutions and sums; anything else is about one operation per element."""
    options = tf.compat.v1.profiler.ProfileOptionBuilder
    quietly = options(options.float_operation()).with_empty_output().build()
    costs, activation = [], inputs
    for unit in units:
        layers = _sequence(unit, activation, "counted")
        traced = tf.function(lambda x, layers=layers: layers(x, training=False)).get_concrete_function(activation)
        counted = tf.compat.v1.profiler.profile(traced.graph, options=quietly)
        activation = traced(activation)
        costs.append(float(counted.total_float_ops + tf.size(activation).numpy()))
    return costs


def _user_stages(user_model: UserModel, function: Any, model: keras.Model, count: int) -> list[keras.Model]:
    """What the file's `stages` returns, checked."""
    what = f"stages(model, {count}) of {user_model.label}"
    stages = call_user_code(what, function, model, count)
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, keras.layers.Layer) for stage in stages):
        returned = [type(stage).__name__ for stage in stages] if isinstance(stages, list | tuple) else type(stages)
        raise ModelError(f"{what} must return a list of Keras models or layers, and returned {returned}")
    if len(stages) != count:
        raise ModelError(f"{what} returned {len(stages)} stages; return {count}")
    return list(stages)


def _check_variables(label: str, model: keras.Model, stages: Sequence[keras.Model]) -> None:
    """Refuses stages unless every variable of the model is in exactly one."""
    parts = [{id(variable) for variable in stage.variables} for stage in stages]
    known = {id(variable) for variable in model.variables}
    for number, stage in enumerate(stages):
        if strangers := [variable.path for variable in stage.weights if id(variable) not in known]:
            raise ModelError(
                f"stage {number} of {label} has {strangers[0]}, which is no part of the model; "
                f"build the stages from the model's own layers"
            )
    for variable in model.weights:
        holders = [number for number, part in enumerate(parts) if id(variable) in part]
        if len(holders) != 1:
            where = f"stages {holders[0]} and {holders[1]}" if holders else f"none of the {len(stages)} stages"
            raise ModelError(f"{variable.path} of {label} is in {where}; put each layer into one stage")
    if not stages[0].trainable_variables:
        raise ModelError(f"the first stage of {label} has no parameters; give it the first layer that has some")


def _check_outputs(label: str, model: keras.Model, stages: Sequence[keras.Model], inputs: tf.Tensor) -> None:
    activation = inputs
    for number, stage in enumerate(stages):
        try:
            activation = stage(activation, training=False)
        except Exception as error:
            raise ModelError(
                f"stage {number} of {label} does not take what comes before it (shape {tuple(activation.shape)}): "
                f"{type(error).__name__}: {error}; a stage takes one tensor and gives one"
            ) from error
    expected = model(inputs, training=False)
    if activation.shape != expected.shape or not np.allclose(activation, expected, RELATIVE, ABSOLUTE):
        raise ModelError(
            f"the stages of {label} one after another do not give what the model gives; "
            f"each must take the output of the one before, and nothing may be left out"
        )
