"""Predictions of composed layouts: those that are another strategy under another name take as long as it does."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from paceline.layout import Layout, all_layouts
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.systems.files import load_hardware

MODEL: dict[str, Any] = {
    "workload": "transformer", "options": {"depth": 8, "width": 1024, "heads": 16}, "input_shape": (512,),
    "classes": 1000, "global_batches": (64,), "precision": "tf32", "execution": "eager",
}  # fmt: skip


def question(**fields: Any) -> Question:
    return Question(load_hardware("8xh100-nvlink"), **{**MODEL, **fields})


def predicted(layout: str, **fields: Any) -> Prediction:
    asked = question(layouts=(Layout.from_text(layout),), workers=(Layout.from_text(layout).workers,), **fields)
    (spec,) = asked.specs("torch-mesh")
    assert asked.why_not(spec) is None
    return asked.predictor.predict(spec)


def as_strategy(name: str, workers: int, **knobs: Any) -> Prediction:
    asked = question(workers=(workers,), knobs=knobs)
    (spec,) = asked.specs(name)
    return asked.predictor.predict(spec)


def test_a_question_has_a_run_for_each_layout_and_other_strategies_pass_over_them() -> None:
    asked = question(layouts=all_layouts(4), workers=(4,))
    assert [spec.layout for spec in asked.specs("torch-mesh")] == list(all_layouts(4))
    assert [(spec.workers, spec.layout) for spec in asked.specs("torch-ddp")] == [(4, None)]


def test_shards_alone_take_what_fsdp_takes() -> None:
    assert asdict(predicted("shard=8").parts) == pytest.approx(asdict(as_strategy("torch-fsdp", 8).parts))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_a_pipeline_alone_takes_what_torch_pipeline_takes(schedule: str) -> None:
    mesh = predicted("pipeline=4", knobs={"schedule": schedule, "microbatches": 8})
    line = as_strategy("torch-pipeline", 4, schedule=schedule, microbatches=8)
    assert mesh.parts.step == pytest.approx(line.parts.step, rel=1e-6)
    assert mesh.parts.bubble == pytest.approx(line.parts.bubble, rel=1e-6)


def test_copies_take_about_what_ddp_takes() -> None:
    assert predicted("replicate=8").parts.step == pytest.approx(as_strategy("torch-ddp", 8).parts.step, rel=0.05)


def test_parts_in_a_pipeline_compute_less_and_exchange_more() -> None:
    # So many samples that devices take longer than hosts, which are slow to ask for parts of layers.
    alone, split, line, parts = (
        predicted(layout, global_batches=(4096,))
        for layout in ("shard=2,pipeline=2", "tensor=2,pipeline=2", "pipeline=4", "tensor=2,pipeline=4")
    )
    assert split.parts.exposed > alone.parts.exposed
    assert parts.parts.compute < line.parts.compute


def test_hosts_take_longer_to_ask_for_parts_of_layers() -> None:
    layouts = ("shard=2", "tensor=2", "shard=2,tensor=2")
    few = {layout: predicted(layout, global_batches=(2,)).parts.compute for layout in layouts}
    assert few["tensor=2"] > 2 * few["shard=2"]
    assert few["shard=2,tensor=2"] > few["tensor=2"]


def test_several_rounds_of_a_schedule_have_its_bubble_each() -> None:
    once = predicted("pipeline=4", knobs={"microbatches": 8})
    twice = predicted("pipeline=4", knobs={"microbatches": 4}, accumulation=2)
    assert twice.parts.compute == pytest.approx(once.parts.compute)
    assert twice.parts.bubble > 1.5 * once.parts.bubble


def test_recomputing_takes_longer_and_holds_less() -> None:
    kept, again = (predicted("shard=4", recompute=kind) for kind in ("none", "full"))
    assert kept.parts.compute < again.parts.compute < 1.4 * kept.parts.compute
    assert again.memory_bytes.value < kept.memory_bytes.value


def test_a_layout_is_told_why_it_cannot_be() -> None:
    asked = replace(question(), layouts=(Layout(tensor=8),), workers=(8,), options={**MODEL["options"], "heads": 4})
    (spec,) = asked.specs("torch-mesh")
    assert "4 heads cannot be split over tensor=8" in str(asked.why_not(spec))


def test_transfers_of_earlier_passes_hide_behind_those_passes() -> None:
    once = predicted("shard=8").parts
    four = predicted("shard=8", accumulation=4, global_batches=(256,)).parts
    each = predicted("shard=8", accumulation=4, global_batches=(256,), knobs={"reduce": "each"}).parts
    # Four times the same step, with one update.
    assert each.transfers == pytest.approx(4 * once.transfers)
    assert each.exposed == pytest.approx(4 * once.exposed, rel=1e-6)
    assert four.transfers < each.transfers and four.exposed < each.exposed


def test_a_compiler_leaves_nothing_of_split_layers_to_the_host() -> None:
    small = {"options": {"depth": 8, "width": 256, "heads": 8}, "input_shape": (64,)}
    eager, compiled = (predicted("tensor=8", **small, execution=how) for how in ("eager", "compiled"))
    assert eager.parts.compute > 3 * compiled.parts.compute
    # What is exchanged is the same.
    assert eager.parts.transfers == pytest.approx(compiled.parts.transfers)


def test_shards_in_the_hosts_memory_cost_its_update_and_copies_that_nothing_hides() -> None:
    kept, waiting = (predicted("shard=8", offload=how) for how in (False, True))
    assert kept.parts.offloaded == 0 < waiting.parts.offloaded
    shard = question().facts.parameters * 4 / 8
    update = (3 * shard + 2 * 2 * shard) / 50e9
    assert waiting.parts.offloaded >= update * 0.99
    assert waiting.parts.step == pytest.approx(kept.parts.step + waiting.parts.offloaded, rel=0.05)
