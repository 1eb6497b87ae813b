"""A stack of equal dense layers: the plainest thing to cut into pieces."""

from collections.abc import Mapping

from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Dense, Flatten, Shape


def layers(options: Mapping[str, Scalar], shape: Shape, classes: int) -> Layers:
    """`depth` hidden layers of `width` units."""
    hidden = tuple(Dense(int(options["width"]), relu=True) for _ in range(int(options["depth"])))
    return (*((Flatten(),) if len(shape) > 1 else ()), *hidden, Dense(classes))


WORKLOAD = Workload(
    name="mlp",
    about="dense layers only; options depth, width",
    dataset="mnist-5k",
    layers=layers,
    options={"depth": 4, "width": 512},
)
