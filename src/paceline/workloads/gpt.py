"""GPT-2 (Radford et al., 2019): token and position embeddings, pre-norm causal blocks, a head tied to the tokens."""

from collections.abc import Mapping

from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Block, Embed, Norm, Shape
from paceline.workloads.sizes import AS_USUAL, sized, token_sample
from paceline.workloads.transformer_layers import Linear, TiedHead, check_heads

# Numbers of one head, in every published size.
HEAD = 64
# Parameters: 124,439,808, 354,823,168, 774,030,080 and 1,557,611,200.
SIZES = {
    "124m": {"depth": 12, "width": 768},
    "350m": {"depth": 24, "width": 1024},
    "774m": {"depth": 36, "width": 1280},
    "1.5b": {"depth": 48, "width": 1600},
}


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks of `width` with `heads` heads."""
    depth, width, heads = (int(options[name]) for name in ("depth", "width", "heads"))
    check_heads("gpt", width, heads)
    head = TiedHead(classes) if options["tied"] else Linear(classes)
    return (Embed(classes, width), *(Block(heads) for _ in range(depth)), Norm(), head)


WORKLOAD = Workload(
    name="gpt",
    about="GPT-2; size 124m, 350m, 774m or 1.5b, or depth, width, heads; sequence, vocabulary, tied",
    dataset="tokens",
    layers=layers,
    options={
        "size": "124m", "depth": AS_USUAL, "width": AS_USUAL, "heads": AS_USUAL, "sequence": 1024, "vocabulary": 50257,
        "tied": True,
    },
    datasets=("tokens", "text"),
    settle=sized("gpt", SIZES, head=HEAD),
    sample=token_sample,
)  # fmt: skip
