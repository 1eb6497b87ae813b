"""A mixture of experts like Mixtral (Jiang et al., 2024): Llama's attention, several gated networks, two per token."""

from collections.abc import Mapping

from paceline.errors import SpecError
from paceline.spec import Scalar
from paceline.workloads.base import Layers, Workload
from paceline.workloads.layers import Shape
from paceline.workloads.sizes import AS_USUAL, sized, token_sample
from paceline.workloads.transformer_layers import Linear, MoeBlock, RmsNorm, TokenEmbed, check_heads

# Parameters of the published one: 46,702,792,704.
SIZES = {
    "tiny": {
        "depth": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "sequence": 32, "vocabulary": 256,
    },
    "8x7b": {
        "depth": 32, "width": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336, "sequence": 4096, "vocabulary": 32000,
    },
}  # fmt: skip


def layers(options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    """`depth` blocks with `experts` networks each."""
    depth, width, heads, kv_heads, hidden, experts, chosen = (
        int(options[name]) for name in ("depth", "width", "heads", "kv_heads", "hidden", "experts", "chosen")
    )
    check_heads("mixtral", width, heads, kv_heads)
    if chosen > experts:
        raise SpecError(f"mixtral cannot choose {chosen} of {experts} experts; use fewer chosen, or more experts")
    blocks = (MoeBlock(heads, kv_heads, hidden, experts=experts, chosen=chosen) for _ in range(depth))
    return (TokenEmbed(classes, width), *blocks, RmsNorm(), Linear(classes))


WORKLOAD = Workload(
    name="mixtral",
    about="a mixture of experts; size tiny or 8x7b, or depth, width, heads, kv_heads, hidden; experts, chosen",
    dataset="tokens",
    layers=layers,
    options={
        "size": "tiny", "depth": AS_USUAL, "width": AS_USUAL, "heads": AS_USUAL, "kv_heads": AS_USUAL,
        "hidden": AS_USUAL, "sequence": AS_USUAL, "vocabulary": AS_USUAL, "experts": 8, "chosen": 2,
    },
    datasets=("tokens", "text"),
    frameworks=("torch", "jax"),
    settle=sized("mixtral", SIZES),
    sample=token_sample,
)  # fmt: skip
