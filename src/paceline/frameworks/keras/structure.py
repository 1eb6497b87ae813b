"""The structure of a user's Keras model in words: what its identity covers beside its files."""

import json
from typing import Any


def describe(model: Any) -> list[str]:
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
