"""Neutral layers as a pure function of parameters, which have JAX's own layouts (NHWC, HWIO), and inputs.

A strategy may store a kernel with one of its dimensions taken apart (`fold`); the function works on either form.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import jax
from jax import Array

from paceline.frameworks.jax.layers import forward
from paceline.frameworks.jax.recompute import recomputed
from paceline.spec import Recompute
from paceline.workloads.base import Layers, named_layers, relu_places
from paceline.workloads.layers import Conv, Flatten, Layer, Shape

Params = Mapping[str, Any]
Apply = Callable[[Params, Array], Array]
# Called with a layer's name, "input", "middle" or "output", and the activation there; gives it back, perhaps placed.
Place = Callable[[str, str, Array], Array]


def build_apply(
    layers: Layers, shape: Shape, place: Place = lambda _name, _where, x: x, recompute: Recompute = "none"
) -> Apply:
    """The forward pass; images come as (n, h, w, c). Blocks compute activations again as `recompute` says."""
    steps, relus = named_layers(layers, shape), relu_places(layers, shape)
    layer_of = {name: layer for name, layer, _ in steps}
    dense_after = {name: after for (name, layer, _), (after, _, _) in pairwise(steps) if isinstance(layer, Flatten)}

    def layer_output(params: Params, name: str, layer: Layer, x: Array) -> Array:
        if isinstance(layer, Flatten):
            kernel = params.get(f"{dense_after.get(name)}.kernel")
            # A kernel whose channels are apart wants them apart.
            return x.reshape(x.shape[0], *(kernel.shape[:-1] if kernel is not None else (-1,)))

        def array_of(array: str) -> Any:
            # A tied head has the first layer's table.
            owner = steps[0][0] if layer.tied and array == "tokens" else name
            return params[f"{owner}.{array}"]

        return forward(layer, array_of, x, lambda y: place(name, "middle", y))

    def run(params: Params, name: str, layer: Layer, x: Array) -> Array:
        if getattr(layer, "heads", None) is None:
            return layer_output(params, name, layer, x)
        arrays = {key: value for key, value in params.items() if key.startswith(f"{name}.")}
        return recomputed(lambda arrays, x: layer_output(arrays, name, layer, x), recompute)(arrays, x)

    def apply(params: Params, x: Array) -> Array:
        for name, layer, _ in steps:
            x = run(params, name, layer, place(name, "input", x))
            if name in relus:
                owner = relus[name]
                # Which pixel is the largest does not change with a bias either, and pooled there are fewer.
                x = jax.nn.relu(x + params[f"{owner}.bias"] if isinstance(layer_of[owner], Conv) else x)
            x = place(name, "output", x)
        return x

    return apply
