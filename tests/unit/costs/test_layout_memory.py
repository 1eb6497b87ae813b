"""Peaks of ranks from one traced step: whole models, shards, stages, split layers."""

from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.layout_memory import mesh_peaks, whole_model_peaks
from paceline.costs.layouts import MeshPlan
from paceline.costs.step_memory import LayerMemory, StepMemory
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy

KEPT, OVER = 1000.0, 300.0
KNOBS = {"schedule": "1f1b", "microbatches": 0, "stages_per_worker": 1, "balance": "counted", "attention": "auto"}


def spec_of(name: str, **fields: Any) -> RunSpec:
    usual = {"workload": "transformer", "global_batch": 16, "steps": 1, "device": "cuda", "precision": "bf16"}
    return complete(RunSpec(strategy=name, **{**usual, **fields}))


def step_of(facts: ModelFacts, width: int = 4) -> StepMemory:
    layers = [
        LayerMemory(layer.name, size, size, KEPT, KEPT + OVER, KEPT + OVER + size)
        for layer in facts.layers
        for size in [layer.parameters * width]
    ]
    return StepMemory(1, (*layers, LayerMemory("loss", 0, 0, 50, 100, 150)), state_bytes=facts.parameters * 2 * width)


def peaks(spec: RunSpec, **more: Any) -> tuple[list[float], ModelFacts, Footprint, StepMemory]:
    facts = spec_facts(spec)
    chosen = strategy(spec.strategy)
    footprint = chosen.footprint(spec, facts)
    step = step_of(facts, 2)
    plan = MeshPlan.of(spec, chosen.knob_values(spec))
    return mesh_peaks(spec, plan, facts, footprint, step, **more), facts, footprint, step


def test_one_worker_needs_what_was_traced() -> None:
    spec = spec_of("torch-single", global_batch=1)
    facts = spec_facts(spec)
    step, footprint = step_of(facts), strategy("torch-single").footprint(spec, facts)
    static = footprint.groups[0].parameter_bytes + footprint.groups[0].optimizer_bytes
    assert whole_model_peaks(spec, facts, footprint, step) == [pytest.approx(static + step.passing_bytes)]


def test_buckets_stay_beside_the_gradients_that_are_made() -> None:
    spec = spec_of("torch-ddp", workers=2, global_batch=2)
    facts = spec_facts(spec)
    step, footprint = step_of(facts), strategy("torch-ddp").footprint(spec, facts)
    (plain,), (once,), (twice,) = (whole_model_peaks(spec, facts, footprint, step, count) for count in (0, 1, 2))
    assert once >= plain
    assert twice - once == pytest.approx(facts.parameters * 4)


def test_more_shards_leave_less_on_each_rank() -> None:
    few, many = (
        max(peaks(spec_of("torch-mesh", layout=f"shard={shards}", global_batch=shards))[0]) for shards in (2, 8)
    )
    assert many < few


def test_parameters_that_stay_gathered_are_all_there() -> None:
    by_layers, facts, _, _ = peaks(spec_of("torch-mesh", layout="shard=2"))
    stay, _, _, _ = peaks(spec_of("torch-mesh", layout="shard=2"), gathers_layers=False)
    biggest = max(layer.parameters for layer in facts.layers)
    assert max(stay) - max(by_layers) > (facts.parameters - 4 * biggest) * 2


def test_the_first_stage_keeps_the_most_micro_batches_and_the_last_has_the_logits() -> None:
    spec = spec_of("torch-mesh", layout="pipeline=2", options={"depth": 4})
    found, facts, footprint, _ = peaks(spec)
    assert len(found) == len(footprint.groups) == 2
    whole = max(peaks(spec_of("torch-mesh", layout="shard=1", options={"depth": 4}))[0])
    assert all(0 < peak < whole + facts.parameters * 4 for peak in found)


def test_recomputation_and_offload_hold_less() -> None:
    plain, _, footprint, _ = peaks(spec_of("torch-mesh", layout="shard=2"))
    away, _, _, _ = peaks(spec_of("torch-mesh", layout="shard=2", offload=True))
    group = footprint.groups[0]
    assert max(plain) - max(away) >= group.parameter_bytes + group.optimizer_bytes - 1


def test_split_layers_keep_their_part() -> None:
    split, _, _, _ = peaks(spec_of("torch-mesh", layout="tensor=2"))
    whole, _, _, _ = peaks(spec_of("torch-mesh", layout="shard=1"))
    assert max(split) < max(whole)


def test_gradients_that_each_pass_reduces_are_never_whole_between_passes() -> None:
    def most(**fields: Any) -> float:
        return max(peaks(spec_of("torch-mesh", layout="shard=4", options={"depth": 12}, **fields))[0])

    once, last, each = most(), most(accumulation=2), most(accumulation=2, knobs={"reduce": "each"})
    parameters = spec_facts(spec_of("torch-mesh", layout="shard=4", options={"depth": 12})).parameters
    # Shards of an earlier pass are there, of four bytes; whole gradients and gathered parameters are not.
    assert once < each < once + parameters * 4 / 4 * 1.05 < last
    assert last - each > 0.6 * parameters * (4 + 2)


def test_what_waits_in_the_hosts_memory_is_not_on_the_device() -> None:
    (kept,), facts, footprint, _ = peaks(spec_of("torch-mesh", layout="shard=1"))
    (waiting,), _, _, _ = peaks(spec_of("torch-mesh", layout="shard=1", offload=True))
    state = footprint.groups[0].parameter_bytes + footprint.groups[0].optimizer_bytes
    assert kept - waiting > 0.8 * (state - facts.parameters * 2)
