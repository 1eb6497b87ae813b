"""A small GPT: embeddings, pre-norm causal blocks, a final norm and a dense head over the vocabulary."""

from collections.abc import Mapping

from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Block, Dense, Embed, Norm, Shape
from paceline.workloads.sizes import AS_USUAL, usual_heads
from paceline.workloads.transformer_layers import check_heads

# Up to this width it has four heads, whatever the width.
_SMALL = 512


def assume(chosen: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Options that a wide model assumes: heads of 128 numbers, unless the user names others."""
    width = chosen.get("width", 0)
    return {} if "heads" in chosen or not isinstance(width, int) or width <= _SMALL else {"heads": usual_heads(width)}


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks of `width` with `heads` heads."""
    depth, width, heads = (int(options[name]) for name in ("depth", "width", "heads"))
    check_heads("the transformer", width, heads)
    return (Embed(classes, width), *(Block(heads) for _ in range(depth)), Norm(), Dense(classes))


def sample(options: Mapping[str, Scalar]) -> tuple[Shape | None, int | None]:
    """The shape of a sample and the classes: those of the data set, unless the options name others."""
    sequence, vocabulary = int(options["sequence"]), int(options["vocabulary"])
    return (sequence,) if sequence != AS_USUAL else None, vocabulary if vocabulary != AS_USUAL else None


WORKLOAD = Workload(
    name="transformer",
    about="a small GPT on token sequences; options depth, width, heads, sequence, vocabulary",
    dataset="tokens",
    layers=layers,
    options={"depth": 4, "width": 128, "heads": 4, "sequence": AS_USUAL, "vocabulary": AS_USUAL},
    datasets=("tokens", "text"),
    assume=assume,
    sample=sample,
)
