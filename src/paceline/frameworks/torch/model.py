"""Neutral layers as a PyTorch module, an `nn.Sequential` with their names, and weights between the two layouts.

With `channels_last` the flattening keeps channels fastest, which is the neutral order; otherwise the rows of the first
dense layer are rearranged instead.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from paceline.frameworks.torch.layers import layer_module, parameter_name, to_neutral, to_torch
from paceline.frameworks.torch.transformer_layers import TiedHeadModule
from paceline.workloads.base import Layers, Weights, named_layers, relu_places
from paceline.workloads.layers import Flatten, Shape

# Samples, channels, rows and columns; of weights, outputs in place of samples.
IMAGE_DIMENSIONS = 4


def build_module(layers: Layers, shape: Shape, channels_last: bool) -> nn.Sequential:
    """The network, with starting weights of PyTorch's that `torch_state` is meant to replace."""
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    relus = relu_places(layers, shape)
    for name, layer, input_shape in named_layers(layers, shape):
        modules[name] = layer_module(layer, input_shape, channels_last)
        if name in relus:
            modules[f"{relus[name]}_relu"] = nn.ReLU(inplace=True)
    module = nn.Sequential(modules)
    tie_heads(module)
    return module


def placed(module: nn.Module, device: torch.device, channels_last: bool) -> nn.Module:
    """The module on the device, its weights in the run's memory format, which is for images of two dimensions alone."""
    if not channels_last:
        return module.to(device, memory_format=torch.contiguous_format)
    module = module.to(device)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim == IMAGE_DIMENSIONS:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return module


def tie_heads(module: nn.Module) -> None:
    """Makes tied heads use the embedding weights of the first layer."""
    tables = [
        child.tokens.weight for child in module.children() if isinstance(getattr(child, "tokens", None), nn.Module)
    ]
    for child in module.children():
        if isinstance(child, TiedHeadModule) and tables:
            child.weight = tables[0]


def torch_state(layers: Layers, shape: Shape, weights: Weights, channels_last: bool) -> dict[str, Tensor]:
    """Neutral weights as a state dict for `build_module`."""
    state = {}
    for neutral, parameter, flattened in _named_parameters(layers, shape, channels_last):
        array = weights[neutral]
        array = to_torch(neutral, _channels_first_rows(array, flattened) if flattened else array)
        state[parameter] = torch.from_numpy(np.ascontiguousarray(array))
    steps = named_layers(layers, shape)
    state |= {f"{name}.weight": state[f"{steps[0][0]}.tokens.weight"] for name, layer, _ in steps if layer.tied}
    return state


def neutral_weights(layers: Layers, shape: Shape, state: Mapping[str, Tensor], channels_last: bool) -> Weights:
    """A state dict of `build_module` as neutral weights."""
    weights = {}
    for neutral, parameter, flattened in _named_parameters(layers, shape, channels_last):
        array = to_neutral(neutral, state[parameter].detach().cpu().contiguous().numpy())
        weights[neutral] = np.ascontiguousarray(_channels_last_rows(array, flattened) if flattened else array)
    return weights


def _named_parameters(layers: Layers, shape: Shape, channels_last: bool) -> Iterator[tuple[str, str, Shape | None]]:
    """Neutral name, PyTorch name, and the image shape if the kernel follows a flattened image, of each array.

    That is of the kernel behind a flattened image whose channels PyTorch has first; of all others it is None.
    """
    flattened: Shape | None = None
    for name, layer, input_shape in named_layers(layers, shape):
        if isinstance(layer, Flatten) and not channels_last:
            flattened = input_shape
        for array in layer.weights(input_shape):
            is_kernel = array.endswith("kernel")
            yield f"{name}.{array}", f"{name}.{parameter_name(layer, array)}", flattened if is_kernel else None
            flattened = None if is_kernel else flattened


def _channels_first_rows(kernel: np.ndarray, shape: Shape) -> np.ndarray:
    channels, height, width = shape
    return kernel.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)


def _channels_last_rows(kernel: np.ndarray, shape: Shape) -> np.ndarray:
    return kernel.reshape(*shape, -1).transpose(1, 2, 0, 3).reshape(kernel.shape)
