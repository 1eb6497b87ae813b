"""Layers cut into stages: as even as can be, and counted as they run."""

import itertools
import random
from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.costs.cuts import Pipeline, cut, cut_by_flops, most_stages
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy


def heaviest(costs: list[float], stretches: tuple[range, ...]) -> float:
    return max(sum(costs[index] for index in stretch) for stretch in stretches)


def test_a_cut_covers_all_layers_in_order() -> None:
    stretches = cut([3, 1, 4, 1, 5, 9, 2, 6], [True] * 8, 3)
    assert [index for stretch in stretches for index in stretch] == list(range(8))


def test_no_other_cut_has_a_lighter_heaviest_stage() -> None:
    chance = random.Random(0)
    for _ in range(50):
        costs = [float(chance.randrange(20)) for _ in range(8)]
        found = heaviest(costs, cut(costs, [True] * 8, 3))
        edges = itertools.combinations(range(1, 8), 2)
        best = min(heaviest(costs, (range(0, a), range(a, b), range(b, 8))) for a, b in edges)
        assert found == best


def test_the_stages_beside_the_heaviest_are_even_too() -> None:
    assert cut([9, 1, 1, 1, 1], [True] * 5, 3) == (range(0, 1), range(1, 3), range(3, 5))


def test_the_first_stage_has_parameters() -> None:
    assert cut([0, 0, 5, 1], [False, False, True, True], 2) == (range(0, 3), range(3, 4))
    assert most_stages([False, False, True, True, False]) == 3


def test_more_stages_than_layers_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="2 layers cannot be cut into 3 stages"):
        cut([1, 1], [True, True], 3)


def facts(*flops: int) -> ModelFacts:
    return ModelFacts(tuple(LayerFacts(str(index), 10, cost, 5, 2) for index, cost in enumerate(flops)))


def test_layers_are_cut_by_their_flops() -> None:
    stages = cut_by_flops(facts(4, 1, 1, 2).layers, 2)
    assert [[layer.name for layer in stage] for stage in stages] == [["0"], ["1", "2", "3"]]


@pytest.mark.parametrize(
    ("schedule", "kept"), [("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1]), ("interleaved", [5.5, 4.5, 3.5, 2.5])]
)
def test_schedules_keep_different_numbers_of_passes(schedule: Any, kept: list[float]) -> None:
    pipeline = Pipeline(4, 64, 8, schedule, 2 if schedule == "interleaved" else 1)
    assert [pipeline.passes_kept(worker) for worker in range(4)] == kept


def pipeline_spec(name: str, **fields: Any) -> RunSpec:
    return complete(RunSpec.model_validate({"strategy": name, "workers": 2, "global_batch": 64, "steps": 1, **fields}))


def test_micro_batches_change_the_messages_and_not_the_bytes() -> None:
    sent = {}
    for count in (1, 4, 16):
        spec = pipeline_spec("torch-pipeline", knobs={"microbatches": count})
        found = strategy("torch-pipeline").footprint(spec, spec_facts(spec))
        sent[count] = found.sent_bytes
        assert {message.count for group in found.groups for message in group.messages} == {count}
    # 6,272 numbers per image cross the cut, and as many gradients come back.
    assert set(sent.values()) == {2 * 64 * 6272 * 4}


def test_stages_together_hold_the_model_once() -> None:
    spec = pipeline_spec("torch-pipeline", workers=4)
    model = spec_facts(spec)
    groups = strategy("torch-pipeline").footprint(spec, model).groups
    assert sum(group.parameter_bytes * group.ranks for group in groups) == model.parameter_bytes


def test_1f1b_keeps_fewer_activations_than_gpipe_on_the_last_stage() -> None:
    kept = {}
    for schedule in ("gpipe", "1f1b"):
        spec = pipeline_spec("torch-pipeline", knobs={"schedule": schedule, "microbatches": 8})
        kept[schedule] = strategy("torch-pipeline").footprint(spec, spec_facts(spec)).groups[-1].activation_bytes
    assert kept["1f1b"] < kept["gpipe"]
