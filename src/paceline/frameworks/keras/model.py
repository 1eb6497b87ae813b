"""Neutral layers as a Keras 3 model, for whichever backend Keras runs on, and a user's own Keras model beside them.

A `keras.Sequential` with the neutral layers' names and weights, which fit as they are: images are channels-last.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.contract.context import Context
from paceline.data.tree import Tree, map_tree, take
from paceline.errors import ModelError
from paceline.frameworks.keras.layers import keras_layer, variable_of
from paceline.spec import RunSpec
from paceline.workloads.base import Layers, Weights, named_layers, relu_places
from paceline.workloads.layers import Shape
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import USER_DATA, build_user_model

IMAGE_DIMENSIONS = 4
# Data whose samples have the shape that the user gave; images of other data sets are turned to channels-last.
_AS_GIVEN = (USER_DATA, "synthetic")

Loss = Callable[[Any, Any], Any]


def keras_layers(layers: Layers, shape: Shape) -> list[keras.layers.Layer]:
    """A Keras layer for each neutral one, under its name, and the ReLUs between them."""
    built: list[keras.layers.Layer] = []
    relus = relu_places(layers, shape)
    for name, layer, input_shape in named_layers(layers, shape):
        built.append(keras_layer(name, layer, input_shape, built[0] if built else None))
        if name in relus:
            built.append(keras.layers.ReLU(name=f"{relus[name]}_relu"))
    return built


def keras_input(shape: Shape) -> Any:
    """The model's input: images channels-last, tokens as whole numbers of the backend's own size."""
    if len(shape) == IMAGE_DIMENSIONS - 1:
        return keras.Input((*shape[1:], shape[0]))
    return keras.Input(shape, dtype=keras.backend.standardize_dtype("int"))


def build_layers(layers: Layers, shape: Shape, weights: Weights) -> keras.Sequential:
    """The network with the given weights."""
    model = keras.Sequential([keras_input(shape), *keras_layers(layers, shape)], name="model")
    for name, variable in named_variables(model, layers, shape).items():
        variable.assign(weights[name])
    return model


def named_variables(model: keras.Model, layers: Layers, shape: Shape) -> dict[str, keras.Variable]:
    """The variables of `build_layers` by the names of the neutral weights, in their order."""
    return {
        f"{name}.{array}": variable_of(model.get_layer(name), array)
        for name, layer, input_shape in named_layers(layers, shape)
        for array in layer.weights(input_shape)
    }


def build_model(context: Context) -> keras.Model:
    """The run's model with its starting weights: neutral layers, or what the user's file returns."""
    set_precision(context.spec)
    keras.utils.set_random_seed(context.spec.seed)
    model = context.model
    if model.user_model is not None:
        return build_keras_model(context)
    return build_layers(model.layers, context.data.input_shape, context.starting_weights())


def build_keras_model(context: Context) -> keras.Model:
    """The user's Keras model, with its variables made."""
    user_model = context.user_model
    assert user_model is not None
    model = build_user_model(user_model)
    if not isinstance(model, keras.Model):
        raise ModelError(
            f"{user_model.label} returned {type(model).__name__}, not a keras.Model; return the model itself"
        )
    make_variables(context, model)
    return model


def make_variables(context: Context, model: keras.Model) -> None:
    """A model that was not told the shape of its inputs makes its variables when it first sees some."""
    if not model.built:
        model(keras_inputs(context, take(context.data.train_inputs, slice(1))))


def set_precision(spec: RunSpec) -> None:
    """Applies the run's precision to every layer made from now on; variables stay in single precision."""
    keras.config.set_dtype_policy("mixed_bfloat16" if spec.precision == "bf16" else "float32")


def keras_inputs(context: Context, inputs: Tree) -> Tree:
    """Inputs as the model takes them: images channels-last, unless the user gave them for a model of their own."""
    as_given = context.spec.model is not None and context.spec.dataset in _AS_GIVEN

    def turned(array: np.ndarray) -> np.ndarray:
        images = array.ndim == IMAGE_DIMENSIONS and not as_given
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if images else array)

    return map_tree(turned, inputs)


def loss_function(context: Context, model: keras.Model) -> Loss:
    """The user's loss, the model's own, or mean cross-entropy over samples and positions; of outputs and targets."""
    user_model = context.model.user_model
    if user_model is not None and user_model.loss is not None:
        return user_model.loss
    from_logits = not ends_in_softmax(model)

    def cross_entropy(outputs: Any, targets: Any) -> Any:
        if (loss := loss_in(outputs)) is not None:
            return loss
        logits = ops.cast(logits_of(outputs), "float32")
        return ops.mean(ops.sparse_categorical_crossentropy(targets, logits, from_logits=from_logits))

    return cross_entropy


def ends_in_softmax(model: keras.Model) -> bool:
    """Whether the outputs are probabilities already."""
    last = model.layers[-1] if model.layers else None
    return isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax


def export_weights(context: Context, model: keras.Model) -> Weights:
    """All weights in the neutral layout, or under the names of the user's model."""
    if context.model.user_model is not None:
        return {variable.path: np.asarray(ops.convert_to_numpy(variable)) for variable in model.weights}
    variables = named_variables(model, context.model.layers, context.data.input_shape)
    return {name: np.asarray(ops.convert_to_numpy(variable)) for name, variable in variables.items()}
