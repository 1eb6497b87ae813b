"""Layers split over workers: which way each goes, what a worker then holds, and what is exchanged."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import PAIRED_SPLITS, LayerFacts
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


def dense(name: str, inputs: int, outputs: int, style: str) -> LayerFacts:
    size = inputs * outputs
    arrays = (("kernel", (inputs, outputs)),)
    return LayerFacts(name, size, 2 * size, outputs, 1, arrays, kind="dense", splits=PAIRED_SPLITS.get(style, {}))


# Attention of 8 features with four heads of queries, two of keys and values, and a norm of single heads.
ATTENTION = ModelFacts(
    (
        LayerFacts("norm", 8, 8, 8, 1, (("weight", (8,)),), splits={}),
        dense("q", 8, 8, "columns"),
        dense("k", 8, 4, "columns"),
        dense("v", 8, 4, "columns"),
        LayerFacts("q_norm", 2, 8, 8, 1, (("weight", (2,)),), splits={}),
        dense("o", 8, 8, "rows"),
        dense("head", 8, 6, "whole"),
    ),
    8,
)


def test_layers_side_by_side_take_the_same_input_and_what_is_between_a_pair_stays_apart() -> None:
    splits = split_layers(ATTENTION, 2, True)
    assert [split.part for split in splits] == ["whole", *["columns"] * 3, "whole", "rows", "whole"]
    assert not any(split.gathers_input or split.gathers_output for split in splits)
    back = {message.name: message.payload_bytes for message in tensor_messages(SPEC, splits, 2, 1)}
    assert back == {"gradient of q's input": 32, "gradient of k's input": 32, "gradient of v's input": 32,
                    "output of o": 32}  # fmt: skip
    held = {layer.name: layer.parameters for layer in worker_model(splits, 2).layers}
    assert held == {"norm": 8, "q": 32, "k": 16, "v": 16, "q_norm": 2, "o": 32, "head": 48}
