"""PyTorch's modules of residual networks and vision transformers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.workloads import image_layers as neutral
from paceline.workloads.image_layers import groups_of
from paceline.workloads.layers import NORM_EPSILON, Layer, Shape


class Normalised(nn.Module):
    """A convolution without a bias and a norm over groups of its channels."""

    def __init__(self, kernel: int, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.GroupNorm(groups_of(channels), channels, NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to the same with other channels."""
        normed: Tensor = self.norm(self.conv(x))
        return normed


class StemModule(nn.Module):
    """The first layers of a residual network."""

    def __init__(self, inputs: int, stem: neutral.Stem) -> None:
        super().__init__()
        self.conv = Normalised(stem.kernel, inputs, stem.channels, stem.stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to fewer pixels and more channels."""
        return functional.relu(self.conv(x), inplace=True)


class ResidualModule(nn.Module):
    """Two or three convolutions, and the input added, itself or made to fit."""

    def __init__(self, inputs: int, block: neutral.Residual) -> None:
        super().__init__()
        self.chain = []
        for name, kernel, into, channels, stride in block.convolutions(inputs):
            self.add_module(name, Normalised(kernel, into, channels, stride))
            self.chain += [name] if name != "skip" else []

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to perhaps fewer pixels and more channels."""
        hidden = x
        for name in self.chain:
            hidden = self.get_submodule(name)(hidden)
            hidden = functional.relu(hidden, inplace=True) if name != self.chain[-1] else hidden
        beside = self.skip(x) if "skip" in self._modules else x
        return functional.relu(hidden + beside, inplace=True)


class AverageModule(nn.Module):
    """The mean of all pixels of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, c)."""
        return x.mean((2, 3))


class PatchesModule(nn.Module):
    """Squares of an image as vectors, the class's before them, positions added."""

    def __init__(self, channels: int, length: int, patches: neutral.Patches) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, patches.width, patches.size, patches.size)
        self.class_vector = nn.Parameter(torch.zeros(patches.width))
        self.positions = nn.Parameter(torch.zeros(length, patches.width))

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, length, width)."""
        vectors = self.conv(x).flatten(2).transpose(1, 2)
        first = self.class_vector.expand(len(x), 1, -1).to(vectors.dtype)
        return torch.cat((first, vectors), dim=1) + self.positions


class FirstVectorModule(nn.Module):
    """The vector of the class."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to (n, width)."""
        return x[:, 0]


def image_module(layer: Layer, shape: Shape) -> nn.Module | None:  # noqa: PLR0911 - one per kind of layer
    """The module of a layer of this kind whose input has this shape; None for other layers."""
    match layer:
        case neutral.Stem():
            return StemModule(shape[0], layer)
        case neutral.OverlappingPool():
            return nn.MaxPool2d(3, 2, padding=1)
        case neutral.Residual():
            return ResidualModule(shape[0], layer)
        case neutral.AveragePool():
            return AverageModule()
        case neutral.Patches():
            return PatchesModule(shape[0], layer.output(shape)[0], layer)
        case neutral.FirstVector():
            return FirstVectorModule()
    return None


def image_parameter(layer: Layer, array: str) -> str | None:
    """The name of a neutral array among the parameters of the layer's module; None for other layers."""
    if isinstance(layer, neutral.Stem | neutral.Residual):
        module, _, kind = array.rpartition("_")
        return f"{module}." + {"kernel": "conv.weight", "scale": "norm.weight", "shift": "norm.bias"}[kind]
    if isinstance(layer, neutral.Patches):
        return {"kernel": "conv.weight", "bias": "conv.bias", "class": "class_vector"}.get(array, array)
    return None
