"""A vision transformer (Dosovitskiy et al., 2021): patches of an image and a class token through encoder blocks."""

from collections.abc import Mapping

from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.image_layers import FirstVector, Patches
from paceline.workloads.layers import Dense, Norm, Shape
from paceline.workloads.sizes import AS_USUAL, sized
from paceline.workloads.transformer_layers import EncoderBlock, check_heads

# Numbers of one head, in every published size.
HEAD = 64
# Parameters on images of 224 x 224 and 1,000 classes: 5,717,416, 86,567,656 and 304,326,632.
SIZES = {
    "tiny": {"depth": 12, "width": 192},
    "b16": {"depth": 12, "width": 768},
    "l16": {"depth": 24, "width": 1024},
}


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks of `width` over patches of `patch` x `patch` pixels."""
    depth, width, heads = (int(options[name]) for name in ("depth", "width", "heads"))
    check_heads("vit", width, heads)
    blocks = (EncoderBlock(heads) for _ in range(depth))
    return (Patches(int(options["patch"]), width), *blocks, Norm(), FirstVector(), Dense(classes))


def sample(_options: Mapping[str, Scalar]) -> tuple[Shape, int]:
    """ImageNet's: 224 x 224 pixels, a thousand classes."""
    return (3, 224, 224), 1000


WORKLOAD = Workload(
    name="vit",
    about="a vision transformer; size tiny, b16 or l16, or depth, width, heads; patch",
    dataset="synthetic",
    layers=layers,
    options={"size": "b16", "depth": AS_USUAL, "width": AS_USUAL, "heads": AS_USUAL, "patch": 16},
    datasets=("synthetic", "mnist-5k", "mnist"),
    settle=sized("vit", SIZES, head=HEAD),
    sample=sample,
)
