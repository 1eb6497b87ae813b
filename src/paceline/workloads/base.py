"""`Workload`: a model as neutral layers, the data it is usually trained on, and its options."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.errors import SpecError, nearest
from paceline.spec import Scalar
from paceline.workloads.layers import Layer, MaxPool, Shape, Weight

# Models beyond were never trained; their layers alone would fill the memory.
_MOST_OPTION = {"depth": 10_000}
_MOST_OF_OTHERS = 10**9
# What a layer takes that looks at so many dimensions.
_SAMPLES = {1: "sequences of tokens; give their length, such as --input-shape 128",
            3: "images; give channels, height and width, such as --input-shape 3x32x32"}  # fmt: skip
Weights = dict[str, npt.NDArray[np.float32]]
Layers = tuple[Layer, ...]


@dataclass(frozen=True)
class Workload:
    """One built-in model. `layers` is given the options in full, the shape of a sample and the class count."""

    name: str
    about: str
    dataset: str
    layers: Callable[[Mapping[str, Scalar], Shape, int], Layers]
    options: Mapping[str, Scalar] = field(default_factory=dict)
    # Data sets it makes sense for beside the usual one; images and tokens do not mix.
    datasets: tuple[str, ...] = ("mnist-5k", "mnist", "synthetic")
    # Frameworks that can train it; all of them unless it says so.
    frameworks: tuple[str, ...] = ("torch", "keras", "jax")
    # Options that follow from the chosen ones, and are then written down with the run.
    assume: Callable[[Mapping[str, Scalar]], Mapping[str, Scalar]] = lambda _chosen: {}
    # The options in full ─► the same with those filled in that a named size, or the others, suggest.
    settle: Callable[[Mapping[str, Scalar]], Mapping[str, Scalar]] = lambda options: options
    # The shape of a sample and the class count that settled options ask for; None where the data set decides.
    sample: Callable[[Mapping[str, Scalar]], tuple[Shape | None, int | None]] = lambda _options: (None, None)

    def build(self, chosen: Mapping[str, Scalar], shape: Shape, classes: int) -> Layers:
        """The layers of the model with these options."""
        return self.layers(self.settle(self.complete_options(chosen)), shape, classes)

    def complete_options(self, chosen: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Defaults with the chosen options in their place; unknown ones and wrong types are refused."""
        for name, value in chosen.items():
            if name not in self.options:
                raise SpecError(f"workload {self.name} has no option {name!r}; {nearest(name, self.options)}")
            kind = type(self.options[name])
            if type(value) is not kind or (kind is int and int(value) < 1):
                raise SpecError(
                    f"option {name} of {self.name} cannot be {value!r}; give such as {self.options[name]!r}"
                )
            if kind is int and int(value) > (most := _MOST_OPTION.get(name, _MOST_OF_OTHERS)):
                raise SpecError(f"option {name} of {self.name} cannot be {value!r}; give {most:,} at most")
        return {**self.options, **self.assume(chosen), **chosen}

    def assumption(self, chosen: Mapping[str, Scalar]) -> str | None:
        """Which options follow from a chosen width, in words; None where none does."""
        settled = self.settle(self.complete_options(chosen))
        others = {name: value for name, value in chosen.items() if name != "width"}
        usual = self.settle(self.complete_options(others))
        follow = [name for name, value in settled.items() if name not in {"width", *chosen} and value != usual[name]]
        if not follow:
            return None
        named = ", ".join(f"{name}={settled[name]}" for name in follow)
        return f"{self.name} of width {settled['width']} has {named} unless you say otherwise (--option {follow[0]}=N)"


def named_layers(layers: Layers, shape: Shape) -> list[tuple[str, Layer, Shape]]:
    """Each layer with its name and the shape of its input."""
    steps = []
    for index, layer in enumerate(layers):
        if layer.dimensions is not None and len(shape) != layer.dimensions:
            raise SpecError(
                f"samples of shape {'x'.join(map(str, shape))} do not fit this model, which takes "
                f"{_SAMPLES[layer.dimensions]}"
            )
        steps.append((f"{index}_{type(layer).__name__.lower()}", layer, shape))
        shape = layer.output(shape)
    return steps


def relu_places(layers: Layers, shape: Shape) -> dict[str, str]:
    """Names of the layers after which ReLU is applied, behind any pooling, ─► the layer that the ReLU belongs to."""
    places: dict[str, str] = {}
    waiting: str | None = None
    steps = named_layers(layers, shape)
    for index, (name, layer, _) in enumerate(steps):
        waiting = name if layer.relu else waiting
        if waiting is not None and not any(isinstance(after, MaxPool) for _, after, _ in steps[index + 1 : index + 2]):
            places[name], waiting = waiting, None
    return places


@cache
def model_facts(layers: Layers, shape: Shape) -> ModelFacts:
    """Counts of every layer, for footprints and predictions."""
    steps = named_layers(layers, shape)
    return ModelFacts(
        tuple(
            LayerFacts(
                name=name,
                parameters=sum(weight.size for weight in layer.weights(input_shape).values()),
                forward_flops=layer.flops(input_shape),
                output_elements=math.prod(layer.output(input_shape)),
                kept_elements=layer.kept(input_shape),
                tensors=len(layer.weights(input_shape)),
                arrays=tuple((array, weight.shape) for array, weight in layer.weights(input_shape).items()),
                heads=getattr(layer, "heads", None),
                kv_heads=getattr(layer, "kv_heads", None),
                experts=getattr(layer, "experts", 0),
                chosen_experts=getattr(layer, "chosen", 0),
                product_elements=layer.products(input_shape),
                attention_sums=math.prod(input_shape[:-1]) * getattr(layer, "heads", 0),
                tied=(layer.output(input_shape)[-1], input_shape[-1]) if layer.tied else None,
                causal=layer.causal,
                kind=layer.kind,
                splits=layer.splits,
                unsplit_elements=layer.kept_unsplit(input_shape),
                # The loss keeps what the last layer gives, in single precision.
                single_elements=layer.kept_single(input_shape)
                + (math.prod(layer.output(input_shape)) if name == steps[-1][0] else 0),
                summed_elements=layer.kept_summed(input_shape),
            )
            for name, layer, input_shape in steps
        ),
        input_elements=math.prod(shape),
    )


def initial_weights(layers: Layers, shape: Shape, seed: int) -> Weights:
    """Every framework's starting point: Glorot uniform kernels and constant biases, from the seed alone."""
    generator = np.random.Generator(np.random.PCG64([seed, 0x1417]))
    return {
        f"{name}.{array}": _initial(weight, generator)
        for name, layer, input_shape in named_layers(layers, shape)
        for array, weight in layer.weights(input_shape).items()
    }


def weight_shapes(layers: Layers, shape: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every trainable array, by its neutral name."""
    facts = model_facts(layers, shape)
    return {f"{layer.name}.{array}": sizes for layer in facts.layers for array, sizes in layer.arrays}


def _initial(weight: Weight, generator: np.random.Generator) -> npt.NDArray[np.float32]:
    if weight.fan is None:
        return np.full(weight.shape, weight.constant, np.float32)
    limit = math.sqrt(6.0 / sum(weight.fan))  # Glorot and Bengio, 2010
    return generator.uniform(-limit, limit, weight.shape).astype(np.float32)
