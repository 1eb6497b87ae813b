"""What PyTorch knows of each kind of layer: its module, the names of its parameters, and how they are laid out."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.frameworks.torch.image_layers import image_module, image_parameter
from paceline.frameworks.torch.transformer_layers import EncoderModule, LlamaModule, transformer_module
from paceline.workloads import layers as neutral
from paceline.workloads.layers import MLP_OVER_WIDTH, NORM_EPSILON, Layer, Shape

# Neutral array of a layer ─► parameter of its module, where they have different names.
_PARAMETERS = {"kernel": "weight", "scale": "weight", "shift": "bias", "tokens": "tokens.weight"}
# Dimensions of a convolution's kernel: height, width, in, out here are out, in, height, width in PyTorch.
_TO_TORCH, _TO_NEUTRAL = (3, 2, 0, 1), (2, 3, 1, 0)


class ChannelsFastestFlatten(nn.Module):
    """Flattens in height, width, channel order: free of copies when the memory is channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, h * w * c)."""
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


class EmbedModule(nn.Module):
    """Token plus position embedding."""

    # Where the runs of tokens begin that it is given, all equally long, where a rank has a part of each sequence.
    first_positions: tuple[int, ...] = (0,)

    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to (n, length, width)."""
        length, positions = tokens.shape[1], self.positions
        if length < len(positions):
            run = length // len(self.first_positions)
            positions = torch.cat([positions[first : first + run] for first in self.first_positions])
        embedded: Tensor = self.tokens(tokens) + positions
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
        joined = self.qkv(self.norm1(x))
        # Not the length of `x`, which may be a part of the sequence.
        n, length, _ = joined.shape
        parts = joined.view(n, length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        attended = self.attend(parts[0], parts[1], parts[2])
        x = x + self.out(attended.transpose(1, 2).reshape(n, length, -1))
        mixed: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return mixed

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention."""
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)


# Modules of transformer blocks.
BLOCK_MODULES = (BlockModule, EncoderModule, LlamaModule)


def layer_module(layer: Layer, shape: Shape, channels_last: bool) -> nn.Module:  # noqa: PLR0911 - one per kind of layer
    """The module of a layer whose input has this shape."""
    match layer:
        case neutral.Conv(channels, kernel):
            return nn.Conv2d(shape[0], channels, kernel, padding="same")
        case neutral.MaxPool(size):
            return nn.MaxPool2d(size)
        case neutral.Flatten():
            return ChannelsFastestFlatten() if channels_last else nn.Flatten()
        case neutral.Dense(units):
            return nn.Linear(shape[-1], units)
        case neutral.Embed(vocabulary, width):
            return EmbedModule(vocabulary, width, shape[0])
        case neutral.Norm():
            return nn.LayerNorm(shape[-1], NORM_EPSILON)
        case neutral.Block(heads):
            return BlockModule(shape[-1], heads)
    module = transformer_module(layer, shape) or image_module(layer, shape)
    if module is None:
        raise TypeError(f"no PyTorch module for {type(layer).__name__}")
    return module


def parameter_name(layer: Layer, array: str) -> str:
    """The name of a neutral array among the parameters of the layer's module."""
    if (parameter := image_parameter(layer, array)) is not None:
        return parameter
    if "_" in array:
        module, _, array = array.rpartition("_")
        return f"{module}.{_PARAMETERS.get(array, array)}"
    return _PARAMETERS.get(array, array)


def to_torch(name: str, array: np.ndarray) -> np.ndarray:
    """An array of the neutral layout as PyTorch stores it: outputs of a kernel first."""
    if not name.endswith("kernel"):
        return array
    return array.transpose(_TO_TORCH) if array.ndim == len(_TO_TORCH) else array.T


def to_neutral(name: str, array: np.ndarray) -> np.ndarray:
    """An array of PyTorch in the neutral layout."""
    if not name.endswith("kernel"):
        return array
    return array.transpose(_TO_NEUTRAL) if array.ndim == len(_TO_NEUTRAL) else array.T
