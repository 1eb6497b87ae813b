"""What ranks of a layout compute, send and hold, in numbers that can be followed by hand."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, RankFootprint
from paceline.costs.recompute import activation_bytes
from paceline.layout import all_layouts
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy

WIDTH, LENGTH, VOCABULARY, BATCH = 16, 8, 32, 16
MODEL = {
    "workload": "transformer", "options": {"depth": 2, "width": WIDTH, "heads": 4}, "input_shape": [LENGTH],
    "classes": VOCABULARY, "global_batch": BATCH, "steps": 1, "optimizer": {"name": "sgd", "momentum": 0.9},
}  # fmt: skip


def counted(layout: str, **fields: Any) -> tuple[Footprint, ModelFacts]:
    spec = complete(RunSpec.parse({"strategy": "torch-mesh", **MODEL, "layout": layout, **fields}, "mesh"))
    facts = spec_facts(spec)
    return strategy("torch-mesh").footprint(spec, facts), facts


@pytest.mark.parametrize("layout", [layout.text for layout in all_layouts(8) if layout.tensor < 8 > layout.pipeline])
def test_all_ranks_together_hold_each_parameter_once_per_copy(layout: str) -> None:
    footprint, facts = counted(layout)
    assert footprint.ranks == 8
    held = sum(group.parameter_bytes * group.ranks for group in footprint.groups)
    assert held >= facts.parameter_bytes
    received = sum(group.received_bytes * group.ranks for group in footprint.groups)
    assert received == pytest.approx(footprint.sent_bytes)
    work = sum(group.flops * group.ranks for group in footprint.groups)
    assert work == pytest.approx(3 * facts.forward_flops * BATCH, rel=0.01)


def test_shards_hold_what_torch_fsdp_holds_and_send_what_it_sends() -> None:
    footprint, facts = counted("shard=4")
    spec = complete(RunSpec.parse({"strategy": "torch-fsdp", "workers": 4, **MODEL}, "fsdp"))
    (mesh,), (fsdp,) = footprint.groups, strategy("torch-fsdp").footprint(spec, facts).groups
    assert replace(mesh, messages=()) == replace(fsdp, messages=())
    assert _bytes_by_kind(mesh) == _bytes_by_kind(fsdp)


def _bytes_by_kind(group: RankFootprint) -> Counter[tuple[str, str, float]]:
    """Messages of each kind and size in each part of a step; those of like layers may be listed together or not."""
    sizes: Counter[tuple[str, str, float]] = Counter()
    for message in group.messages:
        sizes[message.kind, message.phase, message.payload_bytes] += round(message.count)
    return sizes


def test_copies_send_their_gradients_once_around() -> None:
    footprint, facts = counted("replicate=4")
    assert footprint.groups[0].sent_bytes == facts.parameter_bytes * 6 / 4


def test_a_cut_is_crossed_by_a_part_of_the_sequence_of_each_sample_both_ways() -> None:
    crossing = BATCH * LENGTH * WIDTH * 4
    for layout, share in (("pipeline=2", 1), ("tensor=2,pipeline=2", 2), ("shard=2,pipeline=2", 2)):
        footprint, _ = counted(layout)
        sends = [message for message in footprint.groups[0].messages if message.kind == "send"]
        assert sum(message.sent_bytes * message.count for message in sends) == crossing / share
        assert sum(message.received_bytes * message.count for message in sends) == crossing / share


def test_ranks_that_are_further_apart_say_so() -> None:
    footprint, _ = counted("replicate=2,shard=2,tensor=2,pipeline=2", global_batch=32)
    apart = {message.apart for group in footprint.groups for message in group.messages}
    assert apart == {1, 2, 4, 8}
    assert footprint.stages is not None
    assert (footprint.stages.workers, footprint.stages.apart, footprint.stages.replicas) == (2, 8, 8)


def test_recomputing_holds_less_and_computes_blocks_once_more() -> None:
    kept, selective, again = (counted("shard=2", recompute=kind)[0].groups[0] for kind in ("none", "selective", "full"))
    assert kept.activation_bytes > selective.activation_bytes > again.activation_bytes
    assert kept.flops == selective.flops < again.flops < kept.flops * 4 / 3
    assert kept.sent_bytes == again.sent_bytes


def test_a_pipeline_computes_one_pass_again_at_a_time() -> None:
    facts = counted("pipeline=2")[1]
    block = next(layer for layer in facts.layers if layer.heads)
    beside = (block.kept - block.output_elements) * 4
    # Of one stage: samples of one pass, and of two passes that wait.
    one, two = (activation_bytes(facts, "full", samples, passes=samples) for samples in (1, 2))
    kept = activation_bytes(facts, "full", 1) - beside
    assert (one, two) == (kept + beside, 2 * kept + beside)
    few, many = (counted("pipeline=2", recompute="full", knobs={"microbatches": m})[0] for m in (2, 16))
    assert many.groups[0].activation_bytes < few.groups[0].activation_bytes


def test_messages_of_equal_layers_are_counted_together() -> None:
    (shallow, _), (deep, facts) = (
        counted("shard=2,tensor=2", options={**MODEL["options"], "depth": depth}) for depth in (1, 4)
    )
    first = next(layer.name for layer in facts.layers if layer.heads)
    once, four_times = (
        [message for message in footprint.groups[0].messages if message.layer == first] for footprint in (shallow, deep)
    )
    assert [message.name for message in once] == [message.name for message in four_times]
    assert {message.layers for message in four_times} == {4}
    assert [4 * message.count for message in once] == [message.count for message in four_times]


def test_full_recomputation_gathers_the_sequence_again_and_selective_does_not() -> None:
    sent = {kind: counted("tensor=2", recompute=kind)[0].sent_bytes for kind in ("none", "selective", "full")}
    assert sent["none"] == sent["selective"] < sent["full"]


def test_several_passes_hold_fewer_activations_and_send_gradients_once() -> None:
    once, thrice = (counted("shard=2", accumulation=passes, global_batch=24)[0].groups[0] for passes in (1, 3))
    gradients = [[message.count for message in group.messages if message.name.startswith("gradients")]
                 for group in (once, thrice)]  # fmt: skip
    assert gradients[0] == gradients[1]
    assert thrice.sent_bytes > once.sent_bytes


def test_a_norm_to_clip_by_is_a_few_small_messages() -> None:
    plain, clipped = (counted("shard=2,tensor=2,pipeline=2", clip=clip)[0].groups[0] for clip in (None, 1.0))
    more = [message for message in clipped.messages if message not in plain.messages]
    assert sorted((message.apart, message.phase) for message in more) == [(1, "update"), (2, "update"), (4, "update")]
    assert clipped.sent_bytes - plain.sent_bytes < 500


def test_copies_of_a_small_model_sum_all_gradients_at_once_and_those_of_a_large_one_layer_by_layer() -> None:
    (small, facts), (large, _) = (counted("replicate=2", options={**MODEL["options"], "width": width})
                                  for width in (WIDTH, 64 * WIDTH))  # fmt: skip
    (summed,) = small.groups[0].messages
    assert (summed.payload_bytes, summed.layer) == (facts.parameter_bytes, facts.layers[0].name)
    assert len(large.groups[0].messages) > 1


MIXTURE = {"workload": "mixtral", "options": {"depth": 2, "width": WIDTH, "heads": 4, "kv_heads": 2, "hidden": 24,
                                              "experts": 4}}  # fmt: skip


@pytest.mark.parametrize("layout", ["shard=2,tensor=2", "tensor=4,shard=2,expert=2", "shard=2,tensor=2,expert=4"])
def test_experts_are_held_once_by_all_ranks_that_have_vectors_of_their_own(layout: str) -> None:
    footprint, facts = counted(layout, **{**MIXTURE, "options": {**MIXTURE["options"], "kv_heads": 4}})
    on_every_part = {"norm1_scale", "norm2_scale", "scale", "router_kernel"}
    whole = sum(math.prod(shape) for layer in facts.layers for name, shape in layer.arrays if name in on_every_part)
    ways = int(layout.split("tensor=")[1][0])
    held = sum(group.parameter_bytes * group.ranks for group in footprint.groups)
    assert held == facts.parameter_bytes + (ways - 1) * whole * FLOAT_BYTES


def test_vectors_of_a_rank_that_has_fewer_positions_are_fewer() -> None:
    def sent_to_experts(layout: str) -> float:
        messages = counted(layout, **MIXTURE)[0].groups[0].messages
        return sum(message.payload_bytes * message.count for message in messages if message.name.startswith("vectors"))

    assert sent_to_experts("shard=2,tensor=2,expert=2") == sent_to_experts("shard=2,expert=2") / 2


def test_reducing_in_each_pass_gathers_and_scatters_as_often_and_holds_a_layer() -> None:
    (last, facts), (each, _) = (counted("shard=2", accumulation=4, knobs={"reduce": how}) for how in ("last", "each"))
    often = [
        sorted({(message.kind, message.phase, message.count / message.layers, message.passes)
                for message in footprint.groups[0].messages})
        for footprint in (last, each)
    ]  # fmt: skip
    assert often[0] == [("all-gather", "backward", 4, 4), ("all-gather", "forward", 1, 1),
                        ("all-reduce", "backward", 1, 1)]  # fmt: skip
    assert often[1] == [("all-gather", "backward", 4, 4), ("all-gather", "forward", 4, 4),
                        ("all-reduce", "backward", 4, 4)]  # fmt: skip
    whole = facts.parameter_bytes
    assert last.groups[0].gradient_bytes == pytest.approx(1.5 * whole, rel=0.01)
    assert each.groups[0].gradient_bytes < whole
