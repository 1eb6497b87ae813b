"""Layers split over workers: which way each goes, what a worker then holds, and what is exchanged."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.costs.splits import split_layers, tensor_messages, worker_model
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy

SPEC = RunSpec(workload="mnist-small", global_batch=8, steps=1)


def model(workload: str, **options: Any) -> ModelFacts:
    return spec_facts(complete(RunSpec(workload=workload, global_batch=8, steps=1, options=options)))


def parts(facts: ModelFacts, ways: int, split_convolutions: bool = True) -> list[str]:
    return [split.part for split in split_layers(facts, ways, split_convolutions) if split.layer.arrays]


@pytest.mark.parametrize(
    ("workload", "ways", "split_convolutions", "expected"),
    [
        ("mnist-small", 1, True, ["whole", "whole", "whole"]),
        ("mnist-small", 2, True, ["channels", "rows", "columns"]),
        ("mnist-small", 4, True, ["channels", "rows", "whole"]),
        ("mnist-small", 2, False, ["whole", "columns", "rows"]),
        ("mnist-small", 3, True, ["whole", "whole", "whole"]),
        ("mnist-large", 4, True, ["channels"] * 3 + ["rows", "columns", "rows"]),
        ("mlp", 2, True, ["columns", "rows", "columns", "rows", "columns"]),
        ("transformer", 4, True, ["whole", *["heads"] * 4, "whole", "columns"]),
    ],
)
def test_each_layer_goes_its_way(workload: str, ways: int, split_convolutions: bool, expected: list[str]) -> None:
    assert parts(model(workload), ways, split_convolutions) == expected


def test_a_split_activation_is_put_together_only_where_it_must_be() -> None:
    gathers = {split.layer.name for split in split_layers(model("mnist-large"), 2, True) if split.gathers_input}
    assert gathers == {"2_conv", "4_conv"}


def test_the_last_output_is_whole() -> None:
    for workload in ("mnist-small", "mnist-large", "mlp", "transformer"):
        for ways in (2, 4):
            assert not split_layers(model(workload), ways, True)[-1].gives_split


def test_workers_hold_equal_parts_and_copies_of_what_is_whole() -> None:
    facts = model("transformer", depth=1, width=8, heads=2)
    held = worker_model(split_layers(facts, 2, True), 2)
    block = dict(held.layers[1].arrays)
    assert block["qkv_kernel"] == (8, 12) and block["qkv_bias"] == (12,)
    assert block["out_kernel"] == (4, 8) and block["out_bias"] == (8,)
    assert block["up_kernel"] == (8, 16) and block["down_kernel"] == (16, 8)
    assert block["norm1_scale"] == (8,)
    assert held.layers[0].parameters == facts.layers[0].parameters
    assert held.tensors == facts.tensors


def test_a_block_sums_four_activations_in_a_step() -> None:
    facts = model("transformer", depth=1)
    block = [
        message for message in tensor_messages(SPEC, split_layers(facts, 2, True), 2, 3) if "1_block" in message.name
    ]
    assert sum(message.count for message in block) == 4
    assert {message.payload_bytes for message in block} == {3 * 64 * 128 * 4}


def test_the_images_gradient_is_not_wanted() -> None:
    names = [message.name for message in tensor_messages(SPEC, split_layers(model("mnist-small"), 2, True), 2, 8)]
    assert names == ["output of 3_dense", "gradient of 4_dense's input", "output of 4_dense"]


def test_the_same_parts_cost_the_same_as_a_layout() -> None:
    single = complete(RunSpec(strategy="torch-tensor", workers=2, global_batch=64, steps=1))
    spec = complete(RunSpec(strategy="torch-mesh", layout="tensor=2", workers=2, global_batch=64, steps=1))
    facts = spec_facts(spec)
    found = strategy("torch-mesh").footprint(spec, facts)
    expected = strategy("torch-tensor").footprint(single, facts)
    assert found.sent_bytes == expected.sent_bytes
    assert found.groups[0].parameter_bytes == expected.groups[0].parameter_bytes
