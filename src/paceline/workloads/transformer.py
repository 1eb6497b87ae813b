"""A small GPT: embeddings, pre-norm causal blocks, a final norm and a dense head over the vocabulary."""

from collections.abc import Mapping

from paceline.errors import SpecError
from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Block, Dense, Embed, Norm, Shape


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks of `width` with `heads` heads."""
    depth, width, heads = (int(options[name]) for name in ("depth", "width", "heads"))
    if width % heads:
        raise SpecError(
            f"width {width} of the transformer does not divide over {heads} heads; use a multiple of {heads}"
        )
    return (Embed(classes, width), *(Block(heads) for _ in range(depth)), Norm(), Dense(classes))


WORKLOAD = Workload(
    name="transformer",
    about="a small GPT on token sequences; options depth, width, heads",
    dataset="tokens",
    layers=layers,
    options={"depth": 4, "width": 128, "heads": 4},
    datasets=("tokens",),
)
