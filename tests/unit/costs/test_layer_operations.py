"""Operations of built-in layers: as many as the layers count, divided and repeated as runs divide and repeat them."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.costs.layer_operations import Pass, layer_operations, model_operations
from paceline.costs.operations import LOSS, Operation, StepOperations
from paceline.costs.splits import split_layers, worker_model
from paceline.plan import complete
from paceline.spec import Optimizer, RunSpec

MODELS: dict[str, dict[str, Any]] = {
    "gpt": {}, "llama": {}, "bert": {}, "mixtral": {}, "transformer": {}, "mlp": {}, "mnist-large": {},
    "mnist-small": {}, "resnet": {}, "vit": {},
}  # fmt: skip


def facts_of(name: str) -> ModelFacts:
    return spec_facts(complete(RunSpec(workload=name, global_batch=8, steps=1)))


def all_operations(step: StepOperations) -> list[Operation]:
    return [one for layer in step.layers for one in (*layer.forward, *layer.backward)]


def arithmetic(operations: list[Operation]) -> float:
    return sum(one.flops * one.count for one in operations if one.kind not in ("memory", "update"))


@pytest.mark.parametrize("name", MODELS)
def test_products_convolutions_and_attention_compute_what_the_layers_count(name: str) -> None:
    model, samples = facts_of(name), 8
    step = model_operations(model, samples, "bf16", Optimizer())
    assert [layer.layer for layer in step.layers] == [*(layer.name for layer in model.layers), LOSS]
    forward = arithmetic([one for layer in step.layers for one in layer.forward])
    # Causal attention computes half of its scores, which the layers count whole; norms and ReLU are counted too.
    assert 0.9 * samples * model.forward_flops <= forward <= 1.01 * samples * model.forward_flops
    backward = arithmetic([one for layer in step.layers for one in layer.backward])
    assert 1.6 * forward <= backward <= 2.1 * forward
    (update,) = step.update
    assert update.shape == (model.parameters,)


def test_a_passes_work_grows_with_its_samples() -> None:
    model = facts_of("gpt")
    few, many = (arithmetic(all_operations(model_operations(model, n, "bf16", Optimizer()))) for n in (4, 16))
    assert many == pytest.approx(4 * few)


def test_autocast_adds_casts_and_norms_stay_wide() -> None:
    model = facts_of("gpt")
    half, single = (all_operations(model_operations(model, 4, name, Optimizer())) for name in ("bf16", "tf32"))
    assert any(one.name == "_to_copy" for one in half) and not any(one.name == "_to_copy" for one in single)
    assert {one.numbers for one in half if one.kind == "product"} == {"bf16"}
    assert {one.numbers for one in single if one.kind == "product"} == {"tf32"}
    assert {one.numbers for one in half if one.name == "native_layer_norm"} == {"fp32"}


def test_a_workers_part_of_a_split_block_has_its_share_of_the_products() -> None:
    model = facts_of("gpt")
    part = worker_model(split_layers(model, 4, split_convolutions=False), 4)
    block = next(index for index, layer in enumerate(model.layers) if layer.heads)
    whole, split = (layer_operations(facts.layers[block], Pass(4, "bf16", 1024 * 768, True)) for facts in (model, part))
    assert arithmetic([*split.forward]) == pytest.approx(arithmetic([*whole.forward]) / 4, rel=0.01)
    heads = [one.shape[1] for one in split.forward if one.kind == "attention"]
    assert heads == [3]
    # Norms and sums are whole on every worker.
    norms = [one.shape for one in split.forward if one.name == "native_layer_norm"]
    assert norms == [one.shape for one in whole.forward if one.name == "native_layer_norm"]


def test_a_part_of_a_tied_head_is_a_product_with_the_largest_part_of_the_table() -> None:
    model = facts_of("gpt")
    head = replace(model.layers[-1], forward_flops=model.layers[-1].forward_flops // 2)
    made = layer_operations(head, Pass(4, "bf16", 1024 * 768, True))
    assert [one.shape for one in made.forward if one.kind == "product"] == [(1, 4096, 25_129, 768)]
    assert [one.shape for one in made.backward if one.sums_rows] == [(1, 25_129, 768, 4096)]


def test_what_is_recomputed_comes_first_in_the_backward_pass() -> None:
    model = facts_of("gpt")
    none, some, everything = (
        model_operations(model, 4, "bf16", Optimizer(), recompute).layers[1]
        for recompute in ("none", "selective", "full")
    )
    # All up to the block's last product, which nothing of the backward pass needs.
    last = max(place for place, one in enumerate(none.forward) if one.kind == "product")
    assert everything.backward == (*none.forward[:last], *none.backward)
    assert len(none.backward) < len(some.backward) < len(everything.backward)
    assert arithmetic([*some.backward]) == arithmetic([*none.backward])


def test_all_of_a_mixtures_block_is_recomputed_because_what_experts_give_is_weighed() -> None:
    none, full = (
        model_operations(facts_of("mixtral"), 4, "bf16", Optimizer(), recompute).layers[1]
        for recompute in ("none", "full")
    )
    assert full.backward == (*none.forward, *none.backward)


def test_the_host_waits_for_a_mixtures_counts() -> None:
    step = model_operations(facts_of("mixtral"), 4, "bf16", Optimizer())
    waits = [one for one in all_operations(step) if one.waits]
    assert len(waits) == sum(layer.experts > 0 for layer in facts_of("mixtral").layers)


def test_the_gradient_of_the_first_layers_input_is_not_computed() -> None:
    first, second = (model_operations(facts_of("mlp"), 8, "fp32", Optimizer()).layers[index] for index in (1, 2))
    assert [one.kind for one in first.backward].count("product") == 1
    assert [one.kind for one in second.backward].count("product") == 2


def test_a_layer_of_which_only_counts_are_known_has_as_much_work() -> None:
    from paceline.costs.layers import LayerFacts

    layer = LayerFacts("block", 441_080, 154_455_000, 100_000, tensors=2, arrays=(("kernel", (1, 441_080)),))
    made = layer_operations(layer, Pass(64, "fp32", 100_000, True))
    assert arithmetic([*made.forward]) == 64 * layer.forward_flops
    assert arithmetic([*made.backward]) == 2 * 64 * layer.forward_flops
