"""Layers of residual networks and vision transformers, beside the plain convolution."""

import math
from dataclasses import dataclass

from paceline.errors import SpecError
from paceline.workloads.layers import Layer, Shape, Weight

# Of a norm over groups of channels (Wu and He, 2018): as many, or one for each channel where there are fewer.
MOST_GROUPS = 32
BOTTLENECK_OVER_CHANNELS = 4


def strided(side: int, kernel: int, stride: int) -> int:
    """Height or width after a convolution or pooling that pads half its kernel."""
    return (side + 2 * (kernel // 2) - kernel) // stride + 1


def groups_of(channels: int) -> int:
    """Groups that the channels are normalised in."""
    return math.gcd(channels, MOST_GROUPS)


def _kernel(size: int, inputs: int, channels: int) -> Weight:
    return Weight((size, size, inputs, channels), fan=(size * size * inputs, size * size * channels))


def _normalised(name: str, kernel: int, inputs: int, channels: int) -> dict[str, Weight]:
    """Arrays of a convolution without a bias, and of the norm behind it."""
    return {
        f"{name}_kernel": _kernel(kernel, inputs, channels),
        f"{name}_scale": Weight((channels,), constant=1.0),
        f"{name}_shift": Weight((channels,)),
    }


@dataclass(frozen=True)
class Stem(Layer):
    """The first layers of a residual network: a strided convolution, a norm, ReLU."""

    channels: int
    kernel: int = 7
    stride: int = 2
    kind = "convolution"
    dimensions = 3

    def output(self, shape: Shape) -> Shape:
        """Fewer pixels, new channels."""
        return (self.channels, *(strided(side, self.kernel, self.stride) for side in shape[1:]))

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """A kernel and a norm."""
        return _normalised("conv", self.kernel, shape[0], self.channels)

    def flops(self, shape: Shape) -> int:
        """The convolution."""
        return 2 * self.kernel**2 * shape[0] * math.prod(self.output(shape))

    def kept(self, shape: Shape) -> int:
        """What the convolution and the norm make; ReLU is in place."""
        return 2 * math.prod(self.output(shape)) + 2 * groups_of(self.channels)


@dataclass(frozen=True)
class OverlappingPool(Layer):
    """The largest of each three by three pixels, every second one."""

    kind = "shape"

    def output(self, shape: Shape) -> Shape:
        """Half the height and width."""
        return (shape[0], *(strided(side, 3, 2) for side in shape[1:]))

    def flops(self, shape: Shape) -> int:
        """Nine comparisons per output."""
        return 9 * math.prod(self.output(shape))

    def kept(self, shape: Shape) -> int:
        """Its output, and where each number came from, in eight bytes."""
        return 3 * math.prod(self.output(shape))


@dataclass(frozen=True)
class Residual(Layer):
    """A block of a residual network (He et al., 2016), with norms over groups of channels.

    Norms over the batch would make a sample's loss depend on the worker that it is on, so that no way to divide a batch
    would train the same model; a norm over groups has as many parameters.
    """

    channels: int
    stride: int = 1
    bottleneck: bool = True
    kind = "convolution"

    @property
    def outputs(self) -> int:
        """Channels of its output."""
        return self.channels * (BOTTLENECK_OVER_CHANNELS if self.bottleneck else 1)

    def convolutions(self, inputs: int) -> list[tuple[str, int, int, int, int]]:
        """Name, kernel, inputs, channels and stride of each convolution; `skip` exists where the shape changes."""
        if self.bottleneck:
            path = [
                ("conv1", 1, inputs, self.channels, 1),
                ("conv2", 3, self.channels, self.channels, self.stride),
                ("conv3", 1, self.channels, self.outputs, 1),
            ]
        else:
            path = [
                ("conv1", 3, inputs, self.channels, self.stride),
                ("conv2", 3, self.channels, self.channels, 1),
            ]
        if inputs != self.outputs or self.stride > 1:
            path.append(("skip", 1, inputs, self.outputs, self.stride))
        return path

    def _sizes(self, shape: Shape) -> list[tuple[int, int]]:
        """Output numbers and operations of each convolution."""
        sizes, sides = [], shape[1:]
        for name, kernel, inputs, channels, stride in self.convolutions(shape[0]):
            input_sides = shape[1:] if name == "skip" else sides
            output_sides = tuple(strided(side, kernel, stride) for side in input_sides)
            elements = channels * math.prod(output_sides)
            sizes.append((elements, 2 * kernel**2 * inputs * elements))
            sides = sides if name == "skip" else output_sides
        return sizes

    def output(self, shape: Shape) -> Shape:
        """Perhaps fewer pixels, new channels."""
        return (self.outputs, *(strided(side, 3, self.stride) for side in shape[1:]))

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """A kernel and a norm for each convolution."""
        arrays: dict[str, Weight] = {}
        for name, kernel, inputs, channels, _ in self.convolutions(shape[0]):
            arrays |= _normalised(name, kernel, inputs, channels)
        return arrays

    def flops(self, shape: Shape) -> int:
        """The convolutions."""
        return sum(flops for _, flops in self._sizes(shape))

    def kept(self, shape: Shape) -> int:
        """What each convolution and each norm but the last ones make, with a mean and a deviation per group."""
        convolutions = self.convolutions(shape[0])
        groups = sum(2 * groups_of(channels) for _, _, _, channels, _ in convolutions)
        inner = sum(2 * elements for elements, _ in self._sizes(shape))
        summed = sum(name == "skip" for name, *_ in convolutions) + 1
        return inner - (summed - 1) * math.prod(self.output(shape)) + groups


@dataclass(frozen=True)
class AveragePool(Layer):
    """The mean of all pixels of each channel."""

    kind = "shape"

    def output(self, shape: Shape) -> Shape:
        """One number per channel."""
        return (shape[0],)

    def flops(self, shape: Shape) -> int:
        """An addition per number."""
        return math.prod(shape)


@dataclass(frozen=True)
class Patches(Layer):
    """An image as a sequence: a vector for each square, one more for the class, and positions added."""

    size: int
    width: int
    kind = "convolution"
    dimensions = 3

    def output(self, shape: Shape) -> Shape:
        """One vector more than there are squares."""
        if shape[1] % self.size or shape[2] % self.size:
            raise SpecError(
                f"an image of {shape[1]} x {shape[2]} does not divide into patches of {self.size} x {self.size}; "
                f"use --input-shape with multiples of {self.size}, or another option patch"
            )
        return ((shape[1] // self.size) * (shape[2] // self.size) + 1, self.width)

    def weights(self, shape: Shape) -> dict[str, Weight]:
        """A kernel with its bias, the class's vector and the positions."""
        return {
            "kernel": _kernel(self.size, shape[0], self.width),
            "bias": Weight((self.width,)),
            "class": Weight((self.width,)),
            "positions": Weight(self.output(shape), fan=self.output(shape)),  # type: ignore[arg-type]  # two of them
        }

    def flops(self, shape: Shape) -> int:
        """The convolution."""
        return 2 * math.prod(shape) * self.width


@dataclass(frozen=True)
class FirstVector(Layer):
    """The first vector of a sequence: that of the class."""

    kind = "shape"

    def output(self, shape: Shape) -> Shape:
        """One vector."""
        return (shape[-1],)

    def flops(self, shape: Shape) -> int:
        """None."""
        return 0

    def kept(self, shape: Shape) -> int:
        """A part of what is there already."""
        return 0
