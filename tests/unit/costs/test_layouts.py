"""Passes, micro-batches and stages of a layout."""

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.cuts import cut_by_blocks, cut_by_flops
from paceline.costs.layout_checks import why_not_laid_out
from paceline.costs.layouts import SCHEDULES, MeshPlan
from paceline.layout import Layout
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy


def plan(layout: str, schedule: str = "1f1b", **fields: object) -> MeshPlan:
    knobs = {"schedule": schedule} if schedule != "1f1b" else {}
    spec = RunSpec.parse({"strategy": "torch-mesh", "layout": layout, "global_batch": 64, "steps": 1, "knobs": knobs,
                          **fields}, "plan")  # fmt: skip
    return MeshPlan.of(spec, strategy("torch-mesh").knob_values(spec))


def test_without_a_layout_everything_is_divided_over_all_workers() -> None:
    spec = RunSpec(strategy="torch-mesh", workers=4, global_batch=64, steps=1)
    assert MeshPlan.of(spec, strategy("torch-mesh").knob_values(spec)).layout == Layout(shard=4)


def test_a_pipeline_has_two_micro_batches_for_each_rank_and_others_have_none() -> None:
    assert plan("pipeline=4").microbatches == 8
    assert plan("shard=4").microbatches == 1
    assert plan("pipeline=4", knobs={"microbatches": 16}).microbatches == 16


def test_the_batch_is_shared_by_data_ranks_passes_and_micro_batches() -> None:
    made = plan("replicate=2,shard=2,pipeline=2", accumulation=2)
    assert (made.samples, made.passes, made.microbatch) == (16, 8, 2.0)


def test_keys_and_values_go_round_a_ring_where_that_is_asked_for() -> None:
    assert not plan("context=2").in_ring
    assert plan("context=2", knobs={"attention": "ring"}).in_ring
    assert not plan("shard=4", knobs={"attention": "ring"}).in_ring


def test_a_ring_that_was_asked_for_and_cannot_be_is_refused_in_words() -> None:
    options = {"depth": 2, "width": 32, "heads": 4, "sequence": 18}
    fields = {"layout": "context=2", "global_batch": 16, "steps": 1, "options": options, "knobs": {"attention": "ring"}}
    spec = complete(RunSpec.parse({"strategy": "torch-mesh", "workload": "gpt", **fields}, "ring"))
    reason = why_not_laid_out(spec, strategy("torch-mesh").knob_values(spec), spec_facts)
    assert reason is not None
    assert "takes sequences of a multiple of 4 tokens, and these have 18; use attention=gathered" in reason


def test_stages_go_round_the_ranks_or_down_and_up_again() -> None:
    assert [plan("pipeline=3", "interleaved").held_stages(place) for place in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [plan("pipeline=3", "zbv").held_stages(place) for place in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert plan("pipeline=3", "gpipe").held_stages(1) == (1,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_is_on_exactly_one_rank(schedule: str) -> None:
    made = plan("pipeline=4", schedule)
    held = [stage for place in range(4) for stage in made.held_stages(place)]
    assert sorted(held) == list(range(made.stages))


def test_parameters_are_gathered_once_for_forward_passes_and_again_for_each_backward_pass() -> None:
    assert plan("shard=4").gathers == (1, 1)
    assert plan("shard=4", accumulation=4).gathers == (1, 4)
    assert plan("shard=2,pipeline=2", accumulation=4).gathers == (1, 0)
    assert plan("shard=2,pipeline=2", "zbv", accumulation=4).gathers == (4, 0)


def test_stages_of_blocks_want_a_block_each() -> None:
    spec = RunSpec(strategy="torch-mesh", layout="pipeline=2", workers=2, global_batch=16, steps=1,
                   workload="mnist-small", knobs={"balance": "blocks"})  # fmt: skip
    why = why_not_laid_out(complete(spec), strategy("torch-mesh").knob_values(spec), spec_facts)
    assert why == (
        "balance=blocks gives each of 2 stages a block of a built-in transformer, and mnist-small has 0; "
        "leave knob balance out"
    )


def test_stages_may_have_as_many_blocks_each() -> None:
    spec = complete(RunSpec(
        workload="gpt", options={"depth": 8, "width": 64, "heads": 4, "sequence": 16, "vocabulary": 50_000}, steps=1,
        strategy="torch-mesh", layout="pipeline=4", workers=4, global_batch=16,
    ))  # fmt: skip
    layers = spec_facts(spec).layers
    blocks = [[sum(layer.heads is not None for layer in stage) for stage in cut(layers, 4)]
              for cut in (cut_by_flops, cut_by_blocks)]  # fmt: skip
    # The head over many tokens is worth more than all blocks.
    assert blocks == [[3, 3, 2, 0], [2, 2, 2, 2]]
