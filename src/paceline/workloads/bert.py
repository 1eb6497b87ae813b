"""BERT (Devlin et al., 2019) with its head for masked tokens, tied to the embedding."""

from collections.abc import Mapping

from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Dense, Norm, Shape
from paceline.workloads.sizes import AS_USUAL, sized, token_sample
from paceline.workloads.transformer_layers import BertEmbed, EncoderBlock, Gelu, TiedHead, check_heads

# Numbers of one head, in every published size.
HEAD = 64
# Parameters with the head for masked tokens and without a pooler: 109,514,298 and 335,174,458.
SIZES = {"base": {"depth": 12, "width": 768}, "large": {"depth": 24, "width": 1024}}


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks of `width` with `heads` heads."""
    depth, width, heads = (int(options[name]) for name in ("depth", "width", "heads"))
    check_heads("bert", width, heads)
    blocks = (EncoderBlock(heads, norm_first=False) for _ in range(depth))
    return (BertEmbed(classes, width), *blocks, Dense(width), Gelu(), Norm(), TiedHead(classes, bias=True))


WORKLOAD = Workload(
    name="bert",
    about="BERT on masked tokens; size base or large, or depth, width, heads; sequence, vocabulary",
    dataset="masked-tokens",
    layers=layers,
    options={
        "size": "base", "depth": AS_USUAL, "width": AS_USUAL, "heads": AS_USUAL, "sequence": 512, "vocabulary": 30522,
    },
    datasets=("masked-tokens", "tokens"),
    settle=sized("bert", SIZES, head=HEAD),
    sample=token_sample,
)  # fmt: skip
