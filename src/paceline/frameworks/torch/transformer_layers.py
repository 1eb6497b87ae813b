"""PyTorch's modules of today's transformers: Llama's block, a mixture of experts, encoders, tied heads."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.workloads import transformer_layers as neutral
from paceline.workloads.layers import MLP_OVER_WIDTH, NORM_EPSILON, Layer, Shape

# Rotations by (length, first positions, numbers of a head, base, device, type): blocks of a model share them.
_ROTATIONS: dict[tuple[Any, ...], Tensor] = {}


class BertEmbedModule(nn.Module):
    """Tokens, positions and the first segment, added and normalised."""

    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.segments = nn.Parameter(torch.zeros(neutral.SEGMENTS, width))
        self.norm = nn.LayerNorm(width, NORM_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to (n, length, width)."""
        embedded: Tensor = self.norm(self.tokens(tokens) + self.positions + self.segments[0])
        return embedded


class TokenEmbedModule(nn.Module):
    """A vector for each token."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to (n, length, width)."""
        embedded: Tensor = self.tokens(tokens)
        return embedded


class TiedHeadModule(nn.Linear):
    """Scores by the table of tokens, which whoever builds the model puts in place of `weight`."""


class EncoderModule(nn.Module):
    """A block in which all positions see each other, with norms before or after its halves."""

    def __init__(self, width: int, heads: int, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.head_width, self.norm_first = heads, width // heads, norm_first
        self.norm1, self.norm2 = nn.LayerNorm(width, NORM_EPSILON), nn.LayerNorm(width, NORM_EPSILON)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, MLP_OVER_WIDTH * width), nn.Linear(MLP_OVER_WIDTH * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        if self.norm_first:
            x = x + self._attend(self.norm1(x))
            return x + self._network(self.norm2(x))
        x = self.norm1(x + self._attend(x))
        normed: Tensor = self.norm2(x + self._network(x))
        return normed

    def _attend(self, x: Tensor) -> Tensor:
        joined = self.qkv(x)
        n, length, _ = joined.shape
        parts = joined.view(n, length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        summed: Tensor = self.out(attended.transpose(1, 2).reshape(n, length, -1))
        return summed

    def _network(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down(functional.gelu(self.up(x)))
        return mixed


class LlamaModule(nn.Module):
    """A block with RMS norms, rotated queries and keys, shared keys and values, and a gated network."""

    # Where the runs of vectors begin that it is given, all equally long, where a rank has a part of each sequence.
    first_positions: tuple[int, ...] = (0,)

    def __init__(self, width: int, block: neutral.LlamaBlock) -> None:
        super().__init__()
        self.head_width, self.theta = width // block.heads, block.theta
        shared = block.kv_heads * self.head_width
        self.norm1, self.norm2 = nn.RMSNorm(width, NORM_EPSILON), nn.RMSNorm(width, NORM_EPSILON)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, shared, bias=False), nn.Linear(width, shared, bias=False)
        self._make_network(width, block)

    def _make_network(self, width: int, block: neutral.LlamaBlock) -> None:
        self.gate, self.up = nn.Linear(width, block.hidden, bias=False), nn.Linear(width, block.hidden, bias=False)
        self.down = nn.Linear(block.hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        normed = self.norm1(x)
        queries, keys, values = (self._heads(part(normed)) for part in (self.q, self.k, self.v))
        turns = rotations(queries, self.first_positions, self.theta)
        attended = self.attend(rotate(queries, turns), rotate(keys, turns), values)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.network(self.norm2(x))

    def _heads(self, joined: Tensor) -> Tensor:
        """(n, length, heads x numbers) to (n, heads, length, numbers)."""
        return joined.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention; each head of keys and values serves several of queries."""
        shared = queries.shape[1] != keys.shape[1]
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=shared)

    def network(self, x: Tensor) -> Tensor:
        """The gated feed-forward network, applied to each vector by itself."""
        mixed: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return mixed


class MoeModule(LlamaModule):
    """A Llama block with several networks, of which each vector goes to a few."""

    def _make_network(self, width: int, block: neutral.LlamaBlock) -> None:
        assert isinstance(block, neutral.MoeBlock)
        self.chosen = block.chosen
        self.router = nn.Linear(width, block.experts, bias=False)
        self.experts = Experts(block.experts, width, block.hidden)

    def network(self, x: Tensor) -> Tensor:
        """Each vector through the experts that its router prefers, whose weights add up to one."""
        flat = x.reshape(-1, x.shape[-1])
        shares, experts = self.router(flat).float().softmax(-1).topk(self.chosen, dim=-1)
        shares = (shares / shares.sum(-1, keepdim=True)).to(x.dtype)
        # All vectors of the first expert, then of the second, and so on.
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.router.out_features)
        sources = order // self.chosen
        outputs = self.experts(flat[sources], counts) * shares.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, sources, outputs.to(flat.dtype)).view_as(x)


class Experts(nn.Module):
    """The networks of a mixture, their kernels stacked."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(experts, width, hidden))
        self.up = nn.Parameter(torch.zeros(experts, width, hidden))
        self.down = nn.Parameter(torch.zeros(experts, hidden, width))

    def forward(self, vectors: Tensor, counts: Tensor) -> Tensor:
        """Vectors in the order of their experts, of which each has as many as `counts` says."""
        parts = vectors.split(counts.tolist())
        outputs = [
            (functional.silu(part @ gate) * (part @ up)) @ down
            for part, gate, up, down in zip(parts, self.gate, self.up, self.down, strict=True)
        ]
        return torch.cat(outputs)


def rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """Pairs of numbers, half a head apart, turned by angles that grow with the position (Su et al., 2021)."""
    cosines, sines = turns
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def rotations(heads: Tensor, firsts: tuple[int, ...], theta: float) -> Tensor:
    """Cosines and sines for the positions of (n, heads, length, numbers)."""
    length, width = heads.shape[-2:]
    return _rotations(length, firsts, width, theta, heads.device, heads.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _rotations(
    length: int, firsts: tuple[int, ...], width: int, theta: float, device: torch.device, kind: torch.dtype
) -> Tensor:
    key = (length, firsts, width, theta, device, kind)
    if key not in _ROTATIONS:
        # Evaluation may come first, and what it makes could not be used in training.
        with torch.inference_mode(False), torch.no_grad():
            run = torch.arange(length // len(firsts), dtype=torch.float32, device=device)
            places = torch.cat([first + run for first in firsts])
            speeds = theta ** -(torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
            angles = torch.outer(places, speeds).repeat(1, 2)
            _ROTATIONS[key] = torch.stack((angles.cos(), angles.sin())).to(kind)
    return _ROTATIONS[key]


def transformer_module(layer: Layer, shape: Shape) -> nn.Module | None:  # noqa: PLR0911 - one per kind of layer
    """The module of a layer of this kind whose input has this shape; None for other layers."""
    match layer:
        case neutral.BertEmbed(vocabulary, width):
            return BertEmbedModule(vocabulary, width, shape[0])
        case neutral.TokenEmbed(vocabulary, width):
            return TokenEmbedModule(vocabulary, width)
        case neutral.RmsNorm():
            return nn.RMSNorm(shape[-1], NORM_EPSILON)
        case neutral.Linear(units):
            return nn.Linear(shape[-1], units, bias=False)
        case neutral.TiedHead(vocabulary, bias):
            return TiedHeadModule(shape[-1], vocabulary, bias)
        case neutral.Gelu():
            return nn.GELU()
        case neutral.EncoderBlock(heads, norm_first):
            return EncoderModule(shape[-1], heads, norm_first)
        case neutral.MoeBlock():
            return MoeModule(shape[-1], layer)
        case neutral.LlamaBlock():
            return LlamaModule(shape[-1], layer)
    return None
