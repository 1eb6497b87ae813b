"""Neutral layers as a PyTorch module, and weights between the two layouts.

The module is an `nn.Sequential` whose children carry the neutral layers' names, so that it can be cut anywhere. Pooling
comes before ReLU (the result is the same, the work a quarter), and with `channels_last` the flattening keeps channels
fastest, which is the neutral order; otherwise the first dense layer's rows are rearranged instead.
"""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.workloads.base import Layers, Weights, named_layers
from paceline.workloads.layers import (
    MLP_OVER_WIDTH,
    NORM_EPSILON,
    Block,
    Conv,
    Dense,
    Embed,
    Flatten,
    Layer,
    MaxPool,
    Norm,
    Shape,
)

# Neutral part of a layer ─► parameter of the torch module of the same name.
_PARAMETER = {
    "kernel": "weight", "bias": "bias", "scale": "weight", "shift": "bias",
    "tokens": "tokens.weight", "positions": "positions",
}  # fmt: skip


class ChannelsFastestFlatten(nn.Module):
    """Flattens in height, width, channel order: free of copies when the memory is channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, h * w * c)."""
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


class EmbedModule(nn.Module):
    """Token plus position embedding."""

    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to (n, length, width)."""
        embedded: Tensor = self.tokens(tokens) + self.positions
        return embedded


class BlockModule(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width, NORM_EPSILON), nn.LayerNorm(width, NORM_EPSILON)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, MLP_OVER_WIDTH * width), nn.Linear(MLP_OVER_WIDTH * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        n, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, length, -1))
        mixed: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return mixed


def build_module(layers: Layers, shape: Shape, channels_last: bool) -> nn.Sequential:
    """The network, with framework-made weights that `torch_state` is meant to replace."""
    steps = named_layers(layers, shape)
    followed_by_pool = {name for (name, _, _), (_, after, _) in pairwise(steps) if isinstance(after, MaxPool)}
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    waiting_relu: str | None = None
    for name, layer, given in steps:
        modules[name] = _module(layer, given, channels_last)
        if isinstance(layer, Conv) and name in followed_by_pool:
            waiting_relu = f"{name}_relu"
            continue
        if waiting_relu or isinstance(layer, Conv) or (isinstance(layer, Dense) and layer.relu):
            modules[waiting_relu or f"{name}_relu"] = nn.ReLU(inplace=True)
            waiting_relu = None
    return nn.Sequential(modules)


def _module(layer: Layer, given: Shape, channels_last: bool) -> nn.Module:  # noqa: PLR0911 - one per kind of layer
    match layer:
        case Conv(channels, kernel):
            return nn.Conv2d(given[0], channels, kernel, padding="same")
        case MaxPool(size):
            return nn.MaxPool2d(size)
        case Flatten():
            return ChannelsFastestFlatten() if channels_last else nn.Flatten()
        case Dense(units):
            return nn.Linear(given[-1], units)
        case Embed(vocabulary, width):
            return EmbedModule(vocabulary, width, given[0])
        case Norm():
            return nn.LayerNorm(given[-1], NORM_EPSILON)
        case Block(heads):
            return BlockModule(given[-1], heads)
    raise TypeError(f"no PyTorch module for {type(layer).__name__}")


def parameter_name(layer_name: str, layer: Layer, part: str) -> str:
    """The state-dict name of a neutral weight."""
    if isinstance(layer, Block):
        module, _, kind = part.rpartition("_")
        return f"{layer_name}.{module}.{_PARAMETER[kind]}"
    return f"{layer_name}.{_PARAMETER[part]}"


def torch_state(layers: Layers, shape: Shape, weights: Weights, channels_last: bool) -> dict[str, Tensor]:
    """Neutral weights as a state dict for `build_module`."""
    state, flattened_from = {}, None
    for name, layer, given in named_layers(layers, shape):
        if isinstance(layer, Flatten) and not channels_last:
            flattened_from = given
        for part in layer.weights(given):
            array = weights[f"{name}.{part}"]
            if array.ndim == 4:
                array = array.transpose(3, 2, 0, 1)
            elif part.endswith("kernel"):
                array = (_channels_first_rows(array, flattened_from) if flattened_from else array).T
                flattened_from = None
            state[parameter_name(name, layer, part)] = torch.from_numpy(np.ascontiguousarray(array))
    return state


def neutral_weights(layers: Layers, shape: Shape, state: Mapping[str, Tensor], channels_last: bool) -> Weights:
    """A state dict of `build_module` as neutral weights."""
    weights, flattened_from = {}, None
    for name, layer, given in named_layers(layers, shape):
        if isinstance(layer, Flatten) and not channels_last:
            flattened_from = given
        for part in layer.weights(given):
            array = state[parameter_name(name, layer, part)].detach().cpu().contiguous().numpy()
            if array.ndim == 4:
                array = array.transpose(2, 3, 1, 0)
            elif part.endswith("kernel"):
                array = _channels_last_rows(array.T, flattened_from) if flattened_from else array.T
                flattened_from = None
            weights[f"{name}.{part}"] = np.ascontiguousarray(array)
    return weights


def _channels_first_rows(kernel: np.ndarray, shape: Shape) -> np.ndarray:
    channels, height, width = shape
    return kernel.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)


def _channels_last_rows(kernel: np.ndarray, shape: Shape) -> np.ndarray:
    return kernel.reshape(*shape, -1).transpose(1, 2, 0, 3).reshape(kernel.shape)
