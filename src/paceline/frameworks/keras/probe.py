"""What a user's Keras model is and takes, found by sending two samples through, on whichever backend Keras has here."""

import json
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.contract.context import Context
from paceline.contract.user_model_facts import UserModelFacts
from paceline.data.tree import Tree, describe, leaves, map_tree, take
from paceline.errors import ModelError
from paceline.frameworks.keras.model import keras_inputs, loss_function, make_variables
from paceline.frameworks.keras.optimizer import optimizer_for
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import (
    USER_DATA,
    call_user_code,
    line_in_user_code,
    loss_advice,
    telling_samples,
    words_of,
)

SAMPLES = 2


def inspect_keras(context: Context, model: keras.Model) -> UserModelFacts:
    """Facts of the model; raises `ModelError` when it does not fit its data."""
    user_model, data = context.user_model, context.data
    assert user_model is not None
    chosen = telling_samples(data.train_targets)
    inputs, targets = (take(tree, chosen) for tree in (data.train_inputs, data.train_targets))
    outputs = _pass_through(context, model, keras_inputs(context, inputs), targets)
    one_array = isinstance(inputs, np.ndarray) and isinstance(targets, np.ndarray) and hasattr(outputs, "shape")
    returned = describe(outputs) if getattr(outputs, "shape", None) else _output_text(outputs)
    form = None if one_array else f"takes {describe(inputs)} and returns {returned}"
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    if not parameters:
        raise ModelError(f"{user_model.label} returned a model without trainable weights; there is nothing to train")
    _try_update(context, model, keras_inputs(context, inputs), targets)
    tested, aims = (take(tree, slice(SAMPLES)) for tree in (data.test_inputs, data.test_targets))
    call_user_code(
        f"evaluating {user_model.label} on its test data",
        lambda: _loss(context, model, keras_inputs(context, tested), aims),
    )
    cuts = tuple(
        name for name, function in (("stages", user_model.stages), ("plan", user_model.plan)) if function is not None
    )
    layers = list(model._flatten_layers())
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized]
    return UserModelFacts(
        "keras", parameters, data.train_samples, isinstance(model, keras.Sequential), cuts,
        form=form, batch_norms=tuple(layer.name for layer in norms),
        draws=any(getattr(layer, "rate", 0) for layer in layers),
    )  # fmt: skip


def _pass_through(context: Context, model: keras.Model, inputs: Tree, targets: Tree) -> Any:
    """Sends two samples forward, through the loss and through the file's metric; gives the model's outputs."""
    assert context.user_model is not None
    label = context.user_model.label
    try:
        _check_shape(model, inputs)
        make_variables(context, model)
        outputs = model(inputs, training=False)
    except Exception as error:
        advice = "return what it expects from data()"
        if context.spec.dataset != USER_DATA:
            advice = "give the shape that it expects with --input-shape"
        raise ModelError(
            f"{label} does not take inputs of shape {describe(inputs)}: {words_of(error)}; {advice}"
        ) from error
    tensors = map_tree(ops.convert_to_tensor, targets)
    if (loss := context.user_model.loss) is not None:
        _check_loss(f"loss() of {label}", call_user_code(f"loss() of {label}", loss, outputs, tensors))
    try:
        _fit_together(context, model, outputs, targets)
    except Exception as error:
        raise ModelError(
            f"the output of {label} ({_output_text(outputs)} for {SAMPLES} samples) does not fit its targets: "
            f"{words_of(error)}; {loss_advice(context.spec.dataset == USER_DATA, targets)}"
        ) from error
    call_user_code(f"metric() of {label}", context.user_model.metric_values, outputs, tensors)
    _follow(f"metric() of {label}", context.user_model.named_metrics, outputs, tensors)
    return outputs


def _check_loss(what: str, loss: Any) -> None:
    """Whether a loss is one number from which gradients can come."""
    if not keras.ops.is_tensor(loss):
        raise ModelError(f"{what} is {type(loss).__name__}, from which no gradient can come; return a tensor")
    if math.prod(ops.shape(loss)) != 1:
        raise ModelError(f"{what} has shape {tuple(ops.shape(loss))}; return one number, such as its mean")


def _follow(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Follows a function without numbers, as a worker of TensorFlow does before its first step."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    try:
        tf.function(function, autograph=False)(*arguments)
    except Exception as error:
        raise ModelError(
            f"{what} works by itself and cannot be made a graph: {type(error).__name__}{line_in_user_code(error)}; "
            f"leave out what needs numbers in Python, such as float() or if, and use keras.ops"
        ) from error


def _loss(context: Context, model: keras.Model, inputs: Tree, targets: Tree, training: bool = False) -> Any:
    return loss_function(context, model)(model(inputs, training=training), map_tree(ops.convert_to_tensor, targets))


def _try_update(context: Context, model: keras.Model, inputs: Tree, targets: Tree) -> None:
    """Makes the optimizer as a worker does, one backward pass and one update."""
    assert context.user_model is not None
    label = context.user_model.label
    optimizer = call_user_code(f"optimizer() of {label}", optimizer_for, context, model)
    variables = model.trainable_variables

    def update() -> None:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = _loss(context, model, inputs, targets, training=True)
            gradients = [
                ops.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
                for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True)
            ]
        else:
            # JAX follows functions, which a worker makes of the model; here the update is tried alone.
            gradients = [ops.zeros_like(variable) for variable in variables]
        optimizer.apply(gradients, variables)

    call_user_code(f"the first update of {label}", update)


def _output_text(outputs: Any) -> str:
    if hasattr(outputs, "shape"):
        return str(tuple(outputs.shape))
    parts = f" of {', '.join(map(str, outputs))}" if isinstance(outputs, dict) else ""
    return f"a {type(outputs).__name__}{parts}"


def _check_shape(model: keras.Model, inputs: Tree) -> None:
    """Keras would answer with all numbers of the inputs."""
    shapes = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or ()]
    arrays = leaves(inputs)
    if shapes and len(shapes) != len(arrays):
        raise ValueError(f"it has {len(shapes)} inputs, and the data {len(arrays)}")
    if len(shapes) > 1:
        return
    for sizes in shapes:
        shape = arrays[0].shape[1:]
        fits = [want in (None, have) for want, have in zip(sizes, shape, strict=False)]
        if len(sizes) != len(shape) or not all(fits):
            raise ValueError(f"it was built for {'x'.join(map(str, sizes))}")


def _fit_together(context: Context, model: keras.Model, outputs: Any, targets: Tree) -> None:
    assert context.user_model is not None
    if context.user_model.loss is None and loss_in(outputs) is None:
        logits = logits_of(outputs)
        if isinstance(targets, np.ndarray) and targets.dtype.kind == "f":
            # Keras would take them for classes and cut off what is behind the point.
            raise TypeError(f"targets of {targets.dtype} are no classes")
        if isinstance(targets, np.ndarray) and targets.dtype.kind in "iu":
            # Some kernels answer a class that is not there with a loss that is no number.
            for number in (int(targets.min()), int(targets.max())):
                if not 0 <= number < logits.shape[-1]:
                    raise ValueError(f"class {number} is not among {logits.shape[-1]} outputs")
    loss = loss_function(context, model)(outputs, map_tree(ops.convert_to_tensor, targets))
    if math.prod(ops.shape(loss)) != 1:
        raise ValueError(f"the loss has shape {tuple(ops.shape(loss))} and must be one number")


def describe_structure(model: Any) -> list[str]:
    """Kinds and shapes of its layers and weights; names are numbered by Keras as models are made."""
    layers = [f"{type(layer).__name__} {_settings(layer)}" for layer in model.layers]
    return [*layers, *(f"{tuple(weight.shape)} {weight.dtype} {weight.trainable}" for weight in model.weights)]


def _settings(layer: Any) -> str:
    """The settings of a layer, where it can say them; a layer of the user's own often cannot."""
    try:
        settings = {name: value for name, value in layer.get_config().items() if name != "name"}
        return json.dumps(settings, sort_keys=True, default=lambda value: type(value).__name__)
    except (NotImplementedError, TypeError, ValueError):
        return ""
