"""Llama 3 (Dubey et al., 2024): RMS norms, rotary positions, grouped queries, gated networks."""

import math
from collections.abc import Mapping

from paceline.errors import SpecError
from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Shape
from paceline.workloads.sizes import AS_USUAL, sized, token_sample, usual_heads
from paceline.workloads.transformer_layers import Linear, LlamaBlock, RmsNorm, TiedHead, TokenEmbed, check_heads

_PUBLISHED = {"kv_heads": 8, "sequence": 8192, "vocabulary": 128_256}
# Parameters: 1,235,814,400, 8,030,261,248, 70,553,706,496 and 405,853,388,800.
SIZES = {
    "tiny": {
        "depth": 4, "width": 128, "heads": 8, "kv_heads": 4, "hidden": 384, "sequence": 64, "vocabulary": 512,
    },
    "1b": {"depth": 16, "width": 2048, "heads": 32, "hidden": 8192, **_PUBLISHED},
    "8b": {"depth": 32, "width": 4096, "heads": 32, "hidden": 14336, **_PUBLISHED},
    "70b": {"depth": 80, "width": 8192, "heads": 64, "hidden": 28672, **_PUBLISHED},
    "405b": {"depth": 126, "width": 16384, "heads": 128, "hidden": 53248, **_PUBLISHED},
}  # fmt: skip
# The smallest published one alone ties its head to its tokens.
TIED_SIZE = "1b"
# Widths of the network are multiples of this, about 8/3 of the model's.
HIDDEN_STEP = 64


def settle(options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Sizes by name; another width has heads and a network in proportion, unless they are given."""
    settled = sized("llama", SIZES, derived=("heads", "kv_heads", "hidden"))(options)
    width = int(settled["width"])
    if settled["heads"] == AS_USUAL:
        settled["heads"] = usual_heads(width)
    if settled["kv_heads"] == AS_USUAL:
        settled["kv_heads"] = next(count for count in (8, 4, 2, 1) if int(settled["heads"]) % count == 0)
    if settled["hidden"] == AS_USUAL:
        settled["hidden"] = math.ceil(8 * width / 3 / HIDDEN_STEP) * HIDDEN_STEP
    if settled["tied"] == "auto":
        settled["tied"] = "yes" if settled["size"] == TIED_SIZE else "no"
    return settled


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks of `width`."""
    depth, width, heads, kv_heads, hidden = (
        int(options[name]) for name in ("depth", "width", "heads", "kv_heads", "hidden")
    )
    check_heads("llama", width, heads, kv_heads)
    if options["tied"] not in ("yes", "no"):
        raise SpecError(f"option tied of llama cannot be {options['tied']!r}; choose from auto, yes, no")
    head = TiedHead(classes) if options["tied"] == "yes" else Linear(classes)
    blocks = (LlamaBlock(heads, kv_heads, hidden) for _ in range(depth))
    return (TokenEmbed(classes, width), *blocks, RmsNorm(), head)


WORKLOAD = Workload(
    name="llama",
    about="Llama 3; size tiny, 1b, 8b, 70b or 405b, or depth, width, heads, kv_heads, hidden; sequence, vocabulary",
    dataset="tokens",
    layers=layers,
    options={
        "size": "tiny", "depth": AS_USUAL, "width": AS_USUAL, "heads": AS_USUAL, "kv_heads": AS_USUAL,
        "hidden": AS_USUAL, "sequence": AS_USUAL, "vocabulary": AS_USUAL, "tied": "auto",
    },
    datasets=("tokens", "text"),
    settle=settle,
    sample=token_sample,
)  # fmt: skip
