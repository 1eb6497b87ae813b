"""Layers of today's transformers beside GPT-2's own: Llama's block, a mixture of experts, encoders, tied heads."""

import math
from dataclasses import dataclass

from paceline.errors import SpecError
from paceline.workloads.layers import JointBlock, Layer, Shape, Weight

# BERT's sentences of a pair; samples here are single ones, so that all tokens are of the first.
SEGMENTS = 2


def _glorot(*shape: int) -> Weight:
    return Weight(shape, fan=(shape[-2], shape[-1]))


@dataclass(frozen=True)
class TokenEmbed(Layer):
    """A vector for each token; positions are told apart elsewhere."""

    vocabulary: int
    width: int
    dimensions = 1

    def output(self, shape: Shape) -> Shape:
        """A vector per token."""
        return (*shape, self.width)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """The table of tokens."""
        return {"tokens": _glorot(self.vocabulary, self.width)}

    def flops(self, shape: Shape) -> int:
        """None."""
        return 0

    def kept(self, shape: Shape) -> int:
        """Its output, and the tokens' other four bytes."""
        return math.prod(self.output(shape)) + math.prod(shape)


@dataclass(frozen=True)
class BertEmbed(TokenEmbed):
    """Embeddings of tokens, positions and segments, added and normalised (Devlin et al., 2019)."""

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Three tables and a norm."""
        return {
            "tokens": _glorot(self.vocabulary, self.width),
            "positions": _glorot(shape[0], self.width),
            "segments": _glorot(SEGMENTS, self.width),
            "norm_scale": Weight((self.width,), constant=1.0),
            "norm_shift": Weight((self.width,)),
        }

    def flops(self, shape: Shape) -> int:
        """Two additions and the norm."""
        return 10 * shape[0] * self.width

    def kept(self, shape: Shape) -> int:
        """The sum, its norm with a mean and a deviation for each position, and the tokens' other four bytes."""
        return 2 * shape[0] * self.width + 3 * shape[0]

    def kept_single(self, shape: Shape) -> int:
        """Means and deviations, and the tokens."""
        return 3 * shape[0]


@dataclass(frozen=True)
class RmsNorm(Layer):
    """Division by the root mean square of the last dimension, then a scale (Zhang and Sennrich, 2019)."""

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """The scale alone."""
        return {"scale": Weight((shape[-1],), constant=1.0)}

    def flops(self, shape: Shape) -> int:
        """Squares, mean, root, scale."""
        return 4 * math.prod(shape)

    def kept(self, shape: Shape) -> int:
        """Its output, and a root for each position."""
        return math.prod(shape) + math.prod(shape[:-1])

    def kept_single(self, shape: Shape) -> int:
        """The roots."""
        return math.prod(shape[:-1])


@dataclass(frozen=True)
class Linear(Layer):
    """A fully connected layer without a bias."""

    units: int
    kind = "dense"
    splits = {"columns": {"kernel": "columns"}, "rows": {"kernel": "rows"}}

    def output(self, shape: Shape) -> Shape:
        """The last dimension replaced."""
        return (*shape[:-1], self.units)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """The kernel."""
        return {"kernel": _glorot(shape[-1], self.units)}

    def flops(self, shape: Shape) -> int:
        """A multiply and an add per weight and position."""
        return 2 * math.prod(shape) * self.units


@dataclass(frozen=True)
class TiedHead(Layer):
    """Scores of every token: the product with the table of tokens that the first layer has (Press and Wolf, 2017)."""

    vocabulary: int
    bias: bool = False
    kind = "dense"
    tied = True

    def output(self, shape: Shape) -> Shape:
        """A score per token of the vocabulary."""
        return (*shape[:-1], self.vocabulary)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """None of its own but a bias."""
        return {"bias": Weight((self.vocabulary,))} if self.bias else {}

    def flops(self, shape: Shape) -> int:
        """A multiply and an add per weight of the table and position."""
        return 2 * math.prod(shape) * self.vocabulary


@dataclass(frozen=True)
class Gelu(Layer):
    """GELU, computed exactly."""

    kind = "shape"

    def flops(self, shape: Shape) -> int:
        """About eight operations per number."""
        return 8 * math.prod(shape)


@dataclass(frozen=True)
class EncoderBlock(JointBlock):
    """A transformer block in which every position sees all others; with `norm_first` off, norms come after sums.

    The first is a vision transformer's (Dosovitskiy et al., 2021), the second BERT's (Devlin et al., 2019).
    """

    norm_first: bool = True
    causal = False


@dataclass(frozen=True)
class LlamaBlock(Layer):
    """A block of Llama 3 (Dubey et al., 2024): RMS norms, rotated positions, shared keys, a gated network."""

    heads: int
    kv_heads: int
    hidden: int
    # The base of the rotations' wavelengths.
    theta: float = 500_000.0
    kind = "attention"
    splits = {
        "heads": {
            "q_kernel": "columns", "k_kernel": "columns", "v_kernel": "columns", "out_kernel": "rows",
            "gate_kernel": "columns", "up_kernel": "columns", "down_kernel": "rows",
        }
    }  # fmt: skip

    def head_width(self, shape: Shape) -> int:
        """Numbers of one head; they come in pairs that are rotated."""
        return shape[-1] // self.heads

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Two norms, four products of the attention and those of the network."""
        width, shared = shape[-1], self.kv_heads * self.head_width(shape)
        return {
            "q_kernel": _glorot(width, width),
            "k_kernel": _glorot(width, shared),
            "v_kernel": _glorot(width, shared),
            "out_kernel": _glorot(width, width),
            **self._network_weights(width),
            "norm1_scale": Weight((width,), constant=1.0),
            "norm2_scale": Weight((width,), constant=1.0),
        }

    def _network_weights(self, width: int) -> dict[str, Weight]:
        return {
            "gate_kernel": _glorot(width, self.hidden),
            "up_kernel": _glorot(width, self.hidden),
            "down_kernel": _glorot(self.hidden, width),
        }

    def flops(self, shape: Shape) -> int:
        """Dense layers and the two attention products."""
        length, width = shape
        shared = self.kv_heads * self.head_width(shape)
        attention = 2 * length * width * (2 * width + 2 * shared) + 4 * length * length * width
        return attention + self._network_flops(shape)

    def _network_flops(self, shape: Shape) -> int:
        return 2 * 3 * math.prod(shape) * self.hidden

    def products(self, shape: Shape) -> int:
        """Queries, keys, values, the attention with its sums for each head, gate and up."""
        length, width = shape
        return length * (2 * width + 2 * self.kv_heads * self.head_width(shape) + self.heads + 2 * self.hidden)

    def kept(self, shape: Shape) -> int:
        """Both norms with their roots, products, what is rotated, gated activations, the sum between and the output."""
        length, width = shape
        shared = self.kv_heads * self.head_width(shape)
        # Queries and keys are kept once they are rotated, not before.
        attention = 2 * width + 2 * shared + self.heads
        return length * (4 * width + 2 + attention) + self._network_kept(shape)

    def _network_kept(self, shape: Shape) -> int:
        """Gate and up, the gate's activation, and their product."""
        return shape[0] * 4 * self.hidden

    def kept_unsplit(self, shape: Shape) -> int:
        """Outputs of both norms, the sum between the two halves, and the block's output."""
        return 4 * math.prod(shape)

    def kept_single(self, shape: Shape) -> int:
        """Roots of both norms, and the attention's sums."""
        return shape[0] * (2 + self.heads)

    def kept_summed(self, shape: Shape) -> int:
        """The sum between the two halves, and the block's output."""
        return 2 * math.prod(shape)


@dataclass(frozen=True)
class MoeBlock(LlamaBlock):
    """A Llama block with `experts` networks, of which each token goes to the `chosen` that a router prefers.

    As in Mixtral (Jiang et al., 2024): the chosen ones' weights add up to one and no token is dropped. There is no
    further loss that would spread tokens evenly.
    """

    experts: int = 8
    chosen: int = 2
    theta: float = 1_000_000.0
    # Experts are given to different workers whole, not split.
    splits = {}

    def _network_weights(self, width: int) -> dict[str, Weight]:
        return {
            "router_kernel": _glorot(width, self.experts),
            "experts_gate": _glorot(self.experts, width, self.hidden),
            "experts_up": _glorot(self.experts, width, self.hidden),
            "experts_down": _glorot(self.experts, self.hidden, width),
        }

    def _network_flops(self, shape: Shape) -> int:
        return 2 * math.prod(shape) * (3 * self.hidden * self.chosen + self.experts)

    def products(self, shape: Shape) -> int:
        """Products of a block without experts, the network's for each chosen expert, and the router's scores."""
        return super().products(shape) + shape[0] * (2 * self.hidden * (self.chosen - 1) + self.experts)

    def _network_kept(self, shape: Shape) -> int:
        """For each chosen expert a token's input, what the network keeps, its output and its share of the sum.

        Beside them the router's scores, and in eight bytes each what goes where.
        """
        length, width = shape
        return length * (self.chosen * (4 * self.hidden + 3 * width + 8) + self.experts + 1)


def check_heads(workload: str, width: int, heads: int, kv_heads: int | None = None) -> None:
    """Refuses widths and heads that do not divide."""
    if width % heads:
        raise SpecError(f"width {width} of {workload} does not divide over {heads} heads; use a multiple of {heads}")
    if kv_heads is not None and heads % kv_heads:
        raise SpecError(
            f"{heads} heads of {workload} cannot share {kv_heads} heads of keys and values; "
            f"use a number that divides {heads}"
        )
    if kv_heads is not None and (width // heads) % 2:
        raise SpecError(
            f"a head of {workload} has {width // heads} numbers (width {width} over {heads} heads) and they are "
            f"rotated in pairs; use an even number"
        )
