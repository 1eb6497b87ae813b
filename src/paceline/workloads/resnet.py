"""Residual networks (He et al., 2016), with norms over groups of channels in place of the batch's."""

from collections.abc import Mapping

from paceline.errors import SpecError
from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.image_layers import AveragePool, OverlappingPool, Residual, Stem
from paceline.workloads.layers import Dense, Shape

# Blocks of each of the four parts. Parameters on 1,000 classes: 11,689,512, 25,557,032 and 60,192,808.
DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
FIRST_WITH_BOTTLENECKS = 50


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """The network of `depth` layers; `width` channels in its first part."""
    depth, width = int(options["depth"]), int(options["width"])
    if depth not in DEPTHS:
        raise SpecError(f"resnet has no depth {depth}; choose from {', '.join(map(str, DEPTHS))}")
    blocks = [
        Residual(width << part, 2 if part and not number else 1, depth >= FIRST_WITH_BOTTLENECKS)
        for part, count in enumerate(DEPTHS[depth])
        for number in range(count)
    ]
    return (Stem(width), OverlappingPool(), *blocks, AveragePool(), Dense(classes))


def sample(_options: Mapping[str, Scalar]) -> tuple[Shape, int]:
    """ImageNet's: 224 x 224 pixels, a thousand classes."""
    return (3, 224, 224), 1000


WORKLOAD = Workload(
    name="resnet",
    about="a residual network with norms over groups of channels; depth 18, 34, 50, 101 or 152, width",
    dataset="synthetic",
    layers=layers,
    options={"depth": 50, "width": 64},
    datasets=("synthetic", "mnist-5k", "mnist"),
    sample=sample,
)
