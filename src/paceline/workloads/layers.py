"""The neutral description of a network: layers as values, with shapes, counts and initial weights, but no framework.

Shapes of one sample are channels-first. Weights are laid out as TensorFlow and JAX have them (convolutions height,
width, in, out; dense in, out; flattening in height, width, channel order); `frameworks/` rearranges where one differs.
"""

import math
from dataclasses import dataclass

from paceline.costs.layers import CONVOLUTION_SPLITS, DENSE_SPLITS, LayerKind, Splits
from paceline.errors import SpecError

Shape = tuple[int, ...]
NORM_EPSILON = 1e-5
MLP_OVER_WIDTH = 4
# Of attention: what one array holds side by side.
QUERY_KEY_VALUE = 3


@dataclass(frozen=True)
class Weight:
    """One trainable array: its shape and how it starts (`fan` for Glorot's range, None for a constant)."""

    shape: Shape
    fan: tuple[int, int] | None = None
    constant: float = 0.0

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


class Layer:
    """What every kind of layer says of itself, given the shape of its input.

    A new kind is a class here, and in `layers.py` of each framework that is to train it.
    """

    # Which of the calibrated speeds it computes at.
    kind: LayerKind = "other"
    # Of its input; None for any number.
    dimensions: int | None = None
    # In which ways workers can split it; none where each worker must have all of it.
    splits: Splits = {}
    # Whether ReLU follows it.
    relu: bool = False
    # Whether it computes with the first layer's table of tokens.
    tied: bool = False
    # Of attention: whether each position sees those before it only.
    causal: bool = True

    def output(self, shape: Shape) -> Shape:
        """The shape of its output; that of its input unless it says so."""
        return shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Its trainable arrays by name; none unless it says so."""
        return {}

    def flops(self, shape: Shape) -> int:
        """Floating-point operations of the forward pass for one sample."""
        raise NotImplementedError

    def kept(self, shape: Shape) -> int:
        """Numbers (of four bytes) kept for the backward pass of one sample, beside the input: usually the output."""
        return math.prod(self.output(shape))

    def kept_unsplit(self, shape: Shape) -> int:
        """The part of `kept` that every worker keeps in full when the layer is split."""
        return 0

    def products(self, shape: Shape) -> int:
        """For a transformer block: numbers that its products and attention produce, without its two residual sums."""
        return 0

    def kept_single(self, shape: Shape) -> int:
        """The part of `kept` that has four bytes in every precision."""
        return 0

    def kept_summed(self, shape: Shape) -> int:
        """The part of `kept` that consists of sums, which autocast leaves in four bytes."""
        return 0


@dataclass(frozen=True)
class Conv(Layer):
    """A square convolution with padding that keeps the size, then ReLU."""

    channels: int
    kernel: int = 3
    kind = "convolution"
    dimensions = 3
    splits = CONVOLUTION_SPLITS
    # In place, so that nothing more is kept.
    relu = True

    def output(self, shape: Shape) -> Shape:
        """Same height and width, new channels."""
        return (self.channels, *shape[1:])

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Kernel and bias."""
        area = self.kernel * self.kernel
        kernel = (self.kernel, self.kernel, shape[0], self.channels)
        return {"kernel": Weight(kernel, fan=(area * shape[0], area * self.channels)), "bias": Weight((self.channels,))}

    def flops(self, shape: Shape) -> int:
        """A multiply and an add per kernel element and output element."""
        return 2 * self.kernel**2 * shape[0] * math.prod(self.output(shape))


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest of each square of pixels."""

    size: int = 2
    kind = "shape"
    dimensions = 3

    def output(self, shape: Shape) -> Shape:
        """Height and width divided, the rest dropped."""
        if min(shape[1:]) < self.size:
            raise SpecError(
                f"an image of {shape[1]} x {shape[2]} is too small to pool by {self.size}; use larger inputs"
            )
        return (shape[0], shape[1] // self.size, shape[2] // self.size)

    def flops(self, shape: Shape) -> int:
        """One comparison per input element."""
        return math.prod(shape)

    def kept(self, shape: Shape) -> int:
        """Its output, and where in its square each number came from, in eight bytes."""
        return 3 * math.prod(self.output(shape))

    def kept_single(self, shape: Shape) -> int:
        """Where each number came from."""
        return 2 * math.prod(self.output(shape))


@dataclass(frozen=True)
class Flatten(Layer):
    """All numbers of a sample in one row, channels varying fastest."""

    kind = "shape"

    def output(self, shape: Shape) -> Shape:
        """One dimension."""
        return (math.prod(shape),)

    def flops(self, shape: Shape) -> int:
        """None."""
        return 0

    def kept(self, shape: Shape) -> int:
        """The same numbers in another shape."""
        return 0


@dataclass(frozen=True)
class Dense(Layer):
    """A fully connected layer on the last dimension, with ReLU if asked."""

    units: int
    relu: bool = False
    kind = "dense"
    splits = DENSE_SPLITS

    def output(self, shape: Shape) -> Shape:
        """The last dimension replaced."""
        return (*shape[:-1], self.units)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Kernel and bias."""
        return {"kernel": Weight((shape[-1], self.units), fan=(shape[-1], self.units)), "bias": Weight((self.units,))}

    def flops(self, shape: Shape) -> int:
        """A multiply and an add per weight and position."""
        return 2 * math.prod(shape) * self.units


@dataclass(frozen=True)
class Embed(Layer):
    """Token and position embeddings, added."""

    vocabulary: int
    width: int
    dimensions = 1

    def output(self, shape: Shape) -> Shape:
        """A vector per token."""
        return (*shape, self.width)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """One table for tokens, one for positions."""
        return {
            "tokens": Weight((self.vocabulary, self.width), fan=(self.vocabulary, self.width)),
            "positions": Weight((shape[0], self.width), fan=(shape[0], self.width)),
        }

    def flops(self, shape: Shape) -> int:
        """The addition."""
        return shape[0] * self.width

    def kept(self, shape: Shape) -> int:
        """Its output, and the tokens' other four bytes."""
        return math.prod(self.output(shape)) + math.prod(shape)

    def kept_single(self, shape: Shape) -> int:
        """The tokens, which are its input too, in eight bytes."""
        return 2 * math.prod(shape)

    def kept_summed(self, shape: Shape) -> int:
        """Its output: autocast leaves tables as they are."""
        return math.prod(self.output(shape))


@dataclass(frozen=True)
class Norm(Layer):
    """Layer normalisation over the last dimension."""

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Scale and shift."""
        return {"scale": Weight((shape[-1],), constant=1.0), "shift": Weight((shape[-1],))}

    def flops(self, shape: Shape) -> int:
        """Mean, variance, scale, shift."""
        return 8 * math.prod(shape)

    def kept(self, shape: Shape) -> int:
        """Its output, and a mean and a deviation for each position."""
        return math.prod(shape) + 2 * math.prod(shape[:-1])

    def kept_single(self, shape: Shape) -> int:
        """The means and deviations."""
        return 2 * math.prod(shape[:-1])


@dataclass(frozen=True)
class JointBlock(Layer):
    """What transformer blocks with one array for queries, keys and values have in common."""

    heads: int
    kind = "attention"
    # As in Megatron-LM (Shoeybi et al., 2019): each half is split by columns and then by rows, and norms stay whole.
    splits = {
        "heads": {
            "qkv_kernel": "heads",
            "qkv_bias": "heads",
            "out_kernel": "rows",
            "up_kernel": "columns",
            "up_bias": "columns",
            "down_kernel": "rows",
        }
    }

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """Two norms and four dense layers."""
        width = shape[-1]
        dense = {
            "qkv": Dense(QUERY_KEY_VALUE * width), "out": Dense(width), "up": Dense(MLP_OVER_WIDTH * width),
        }  # fmt: skip
        weights = {f"{part}_{name}": w for part, layer in dense.items() for name, w in layer.weights(shape).items()}
        down = Dense(width).weights((MLP_OVER_WIDTH * width,))
        weights |= {f"down_{name}": weight for name, weight in down.items()}
        for part in ("norm1", "norm2"):
            weights |= {f"{part}_{name}": weight for name, weight in Norm().weights(shape).items()}
        return weights

    def flops(self, shape: Shape) -> int:
        """Dense layers and the two attention products; the softmax and norms are small beside them."""
        length, width = shape
        dense = 2 * length * width * width * (4 + 2 * MLP_OVER_WIDTH)
        return dense + 4 * length * length * width

    def kept(self, shape: Shape) -> int:
        """Outputs of both norms, of the dense layers (but those that are only added), of the attention and of GELU.

        Beside them a mean and a deviation for each position and norm, and the attention's sums for each head.
        """
        length, width = shape
        # Two norms, three of the first dense layer, the attention's, the sum after it, the block's own.
        return length * (width * (2 + 3 + 1 + 1 + 1 + 2 * MLP_OVER_WIDTH) + 2 * 2 + self.heads)

    def kept_unsplit(self, shape: Shape) -> int:
        """Outputs of both norms, the sum between the two halves, and the block's output."""
        return 4 * math.prod(shape)

    def products(self, shape: Shape) -> int:
        """Queries, keys, values, the attention with its sums for each head, and the first dense layer."""
        length, width = shape
        return length * ((QUERY_KEY_VALUE + 1 + MLP_OVER_WIDTH) * width + self.heads)

    def kept_single(self, shape: Shape) -> int:
        """Means and deviations of both norms, and the attention's sums."""
        return shape[0] * (2 * 2 + self.heads)

    def kept_summed(self, shape: Shape) -> int:
        """The sum between the two halves, and the block's output."""
        return 2 * math.prod(shape)


@dataclass(frozen=True)
class Block(JointBlock):
    """A pre-norm transformer block: causal attention, then a two-layer GELU network, each with a residual."""
