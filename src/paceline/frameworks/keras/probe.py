"""What a user's Keras model is and takes, found by sending two samples through, on whichever backend Keras has here."""

import json
import math
import re
from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.contract.context import Context
from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import ModelError
from paceline.frameworks.keras.model import keras_inputs, loss_function, make_variables
from paceline.workloads.user_model import telling_samples

SAMPLES = 2
# Keras puts what went wrong in bold, between where and a list of all arguments.
_BOLD = re.compile(r"\x1b\[1m(.*?)\x1b\[0m", re.DOTALL)


def inspect_keras(context: Context, model: keras.Model) -> UserModelFacts:
    """Facts of the model; raises `ModelError` when it does not fit its data."""
    user_model, data = context.user_model, context.data
    assert user_model is not None
    chosen = telling_samples(data.train_targets)
    _pass_through(context, model, keras_inputs(context, data.train_inputs[chosen]), data.train_targets[chosen])
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    if not parameters:
        raise ModelError(f"{user_model.label} returned a model without trainable weights; there is nothing to train")
    cuts = tuple(
        name for name, function in (("stages", user_model.stages), ("plan", user_model.plan)) if function is not None
    )
    layers = list(model._flatten_layers())
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized]
    return UserModelFacts(
        "keras", parameters, data.train_samples, isinstance(model, keras.Sequential), cuts,
        batch_norms=tuple(layer.name for layer in norms), draws=any(getattr(layer, "rate", 0) for layer in layers),
    )  # fmt: skip


def _pass_through(context: Context, model: keras.Model, inputs: np.ndarray, targets: np.ndarray) -> None:
    assert context.user_model is not None
    label, shape = context.user_model.label, "x".join(map(str, inputs.shape[1:]))
    try:
        _check_shape(model, inputs.shape[1:])
        make_variables(context, model)
        outputs = model(inputs, training=False)
    except Exception as error:
        raise ModelError(
            f"{label} does not take inputs of shape {shape}: {_words(error)}; "
            f"give the shape that it expects with --input-shape"
        ) from error
    try:
        _fit_together(context, model, outputs, targets)
    except Exception as error:
        output_shape = tuple(outputs.shape) if hasattr(outputs, "shape") else type(outputs).__name__
        raise ModelError(
            f"the output of {label} ({output_shape} for {SAMPLES} samples) does not fit its targets: {_words(error)}; "
            f"give its class count with --classes, or a function loss(outputs, targets) in the file"
        ) from error


def _check_shape(model: keras.Model, shape: tuple[int, ...]) -> None:
    """Keras would answer with all numbers of the inputs."""
    shapes = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or ()]
    if len(shapes) > 1:
        raise ValueError(f"it has {len(shapes)} inputs, and data sets have one")
    for sizes in shapes:
        fits = [want in (None, have) for want, have in zip(sizes, shape, strict=False)]
        if len(sizes) != len(shape) or not all(fits):
            raise ValueError(f"it was built for {'x'.join(map(str, sizes))}")


def _words(error: Exception) -> str:
    bold = _BOLD.search(str(error))
    return f"{type(error).__name__}: {bold.group(1) if bold else error}"


def _fit_together(context: Context, model: keras.Model, outputs: Any, targets: np.ndarray) -> None:
    assert context.user_model is not None
    if context.user_model.loss is None and targets.dtype.kind == "i" and int(targets.max()) >= outputs.shape[-1]:
        # Some kernels answer a class that is not there with a loss that is no number.
        raise ValueError(f"class {int(targets.max())} is not among {outputs.shape[-1]} outputs")
    loss = loss_function(context, model)(outputs, ops.convert_to_tensor(targets))
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
