"""What ranks send and hold in numbers of two bytes."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import RankFootprint
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy

MODEL = {
    "workload": "transformer", "options": {"depth": 4, "width": 16, "heads": 4}, "input_shape": [8], "classes": 32,
    "global_batch": 16, "steps": 1, "workers": 2, "optimizer": {"name": "sgd", "momentum": 0.9},
}  # fmt: skip
SHARDED = ("torch-fsdp", "torch-mesh")
WHOLE = ("torch-ddp", "torch-zero", "torch-local-sgd", "torch-ps-sync")
PARTS = ("torch-pipeline", "torch-layers", "torch-tensor")


def first(name: str, **fields: Any) -> RankFootprint:
    spec = complete(RunSpec.parse({**MODEL, "strategy": name, **fields}, "precision"))
    return strategy(name).footprint(spec, spec_facts(spec)).groups[0]


def sent(rank: RankFootprint, what: str) -> float:
    return sum(message.payload_bytes * message.count for message in rank.messages if message.name.startswith(what))


@pytest.mark.parametrize("name", SHARDED)
def test_shards_gather_two_bytes_and_add_up_as_the_run_says(name: str) -> None:
    single, mixed, rounded, pure, whole = (
        first(name, precision=precision, reduction=reduction)
        for precision, reduction in (
            ("fp32", None), ("bf16", None), ("bf16", "bf16"), ("bf16-pure", None), ("bf16-pure", "fp32"),
        )
    )  # fmt: skip
    for half in (mixed, rounded, pure, whole):
        assert sent(half, "parameters") == sent(single, "parameters") / 2
    assert sent(mixed, "gradients") == sent(whole, "gradients") == sent(single, "gradients")
    assert sent(rounded, "gradients") == sent(pure, "gradients") == sent(single, "gradients") / 2
    assert mixed.parameter_bytes == single.parameter_bytes == 2 * pure.parameter_bytes
    assert mixed.optimizer_bytes == single.optimizer_bytes == 2 * pure.optimizer_bytes
    assert mixed.activation_bytes < single.activation_bytes


@pytest.mark.parametrize("name", [*WHOLE, *PARTS])
def test_parameters_that_are_held_whole_are_cast_in_a_copy(name: str) -> None:
    single, mixed = first(name), first(name, precision="bf16")
    assert mixed.parameter_bytes == single.parameter_bytes
    assert mixed.optimizer_bytes == single.optimizer_bytes
    assert mixed.gradient_bytes == single.gradient_bytes
    # With 16 samples of 8 tokens what is kept outweighs the copies of kernels.
    assert single.activation_bytes / 2 < mixed.activation_bytes < single.activation_bytes


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16-pure"])
def test_activations_between_workers_have_two_bytes(name: str, precision: str) -> None:
    assert first(name, precision=precision).sent_bytes == first(name).sent_bytes / 2


def test_gradients_of_copies_are_added_up_as_the_run_says() -> None:
    single, mixed, rounded = (first("torch-ddp", precision="bf16", reduction=kind) for kind in (None, "fp32", "bf16"))
    assert single.sent_bytes == mixed.sent_bytes == 2 * rounded.sent_bytes
    assert rounded.gradient_bytes == mixed.gradient_bytes * 3 / 2
    assert first("torch-ddp", precision="bf16-pure").sent_bytes == rounded.sent_bytes


def test_indices_and_statistics_stay_as_wide_as_they_are() -> None:
    single, pure = first("torch-single", workers=1), first("torch-single", workers=1, precision="bf16-pure")
    length, heads, depth, samples = 8, 4, 4, 16
    # Tokens of eight bytes, means and deviations of all norms, sums of attention, and the loss's logits.
    wide = length * (8 + (2 * (2 * depth + 1) + heads * depth + 32) * 4)
    assert pure.activation_bytes == (single.activation_bytes / samples - wide) * samples / 2 + wide * samples


def test_parts_of_a_layer_and_recomputed_blocks_are_halved_too() -> None:
    for fields in ({"layout": "tensor=2"}, {"layout": "shard=2", "recompute": "full"}, {"layout": "pipeline=2"}):
        single, half = (first("torch-mesh", **fields, precision=kind) for kind in ("fp32", "bf16"))
        assert single.activation_bytes / 2 <= half.activation_bytes < single.activation_bytes * 0.75
        assert half.sent_bytes < single.sent_bytes
