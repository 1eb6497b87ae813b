"""A run's model and optimizer as Keras source, for TensorFlow."""

from collections.abc import Mapping
from typing import Any

from paceline.recommend.scripts.base import Source, unknown_layer
from paceline.recommend.scripts.layout import call, listed, repeated_items
from paceline.spec import Optimizer
from paceline.workloads.base import Layers, named_layers, relu_places
from paceline.workloads.layers import Block, Conv, Dense, Embed, Flatten, Layer, MaxPool, Norm, Shape


def keras_values(source: Source) -> Mapping[str, Any]:
    """What the templates of TensorFlow scripts are filled with, by name."""
    spec = source.spec
    layers = source.built_in[0] if spec.model is None else ()
    return {
        "model": model_text(*source.built_in) if layers else "",
        "has_pooling": any(isinstance(layer, MaxPool) for layer in layers),
        "has_blocks": any(isinstance(layer, Block) for layer in layers),
        "optimizer": optimizer_text(spec.optimizer),
        "channels_at_end": True,
        # Whether a user's file is loaded with the script, or later.
        "is_global": False,
        "is_bf16": spec.precision == "bf16",
        "is_compiled": spec.execution == "compiled",
    }


def model_text(layers: Layers, shape: Shape) -> str:
    """The statement that returns the model."""
    items = listed("[", repeated_items(layer_lines(layers, shape)), "]", indent=8)
    return f"    return keras.Sequential(\n{items}\n    )"


def layer_lines(layers: Layers, shape: Shape) -> list[str]:
    """The items of a `keras.Sequential`; pooling comes before ReLU."""
    lines, relus = [input_line(shape)], relu_places(layers, shape)
    for name, layer, input_shape in named_layers(layers, shape):
        owner = relus.get(name)
        lines.append(layer_line(layer, input_shape, has_relu=owner == name))
        if owner not in (None, name):
            lines.append("keras.layers.ReLU()")
    return lines


def input_line(shape: Shape) -> str:
    """Images with their channels last, tokens as whole numbers."""
    if len(shape) == 3:
        return f"keras.Input({(*shape[1:], shape[0])})"
    return f"keras.Input({shape}" + (', dtype="int64")' if len(shape) == 1 else ")")


def layer_line(layer: Layer, shape: Shape, has_relu: bool) -> str:  # noqa: PLR0911 - one per kind of layer
    """The expression that makes a layer whose input has this shape, with the ReLU that comes right after it."""
    relu = ', activation="relu"' if has_relu else ""
    match layer:
        case Conv(channels, kernel):
            return f'keras.layers.Conv2D({channels}, {kernel}, padding="same"{relu})'
        case MaxPool(size):
            return f"keras.layers.MaxPooling2D({size})"
        case Flatten():
            return "keras.layers.Flatten()"
        case Dense(units):
            return f"keras.layers.Dense({units}{relu})"
        case Embed(vocabulary, width):
            return f"Embedding({vocabulary}, {width})"
        case Norm():
            return "keras.layers.LayerNormalization(epsilon=1e-5)"
        case Block(heads):
            return f"Block({shape[-1]}, heads={heads})"
    raise unknown_layer("Keras", layer)


def optimizer_text(settings: Optimizer) -> str:
    """The statement that returns the optimizer.

    Adam, AdamW and Adagrad are subclasses in which all settings mean what they mean in PyTorch; decay is added to the
    gradients of the others.
    """
    options = ["learning_rate=Schedule(total)" if settings.scheduled else f"learning_rate={settings.lr!r}"]
    if settings.update_name == "adam":
        options += [f"beta_1={settings.betas[0]!r}", f"beta_2={settings.betas[1]!r}"]
    elif settings.name == "adagrad":
        options += ["initial_accumulator_value=0.0", f"epsilon={settings.eps!r}"]
    elif settings.momentum:
        options += [f"momentum={settings.momentum!r}"]
    sgd = "Sgd" if settings.momentum and settings.scheduled else "keras.optimizers.SGD"
    kind = {"adam": "Adam", "adamw": "AdamW", "sgd": sgd, "adagrad": "Adagrad"}[settings.name]
    return call(f"return {kind}(", options, indent=4)
