"""The search over layouts: what is screened agrees with what is predicted, and dimensions are as experts bound them."""

import random
from typing import Any

import pytest

from paceline.layout import Layout
from paceline.predict.question import Question
from paceline.recommend.answer import recommend
from paceline.recommend.screen import Screen
from paceline.recommend.search import (
    MEMORY_TOLERANCE,
    MOST_PREDICTED,
    SECONDS_TOLERANCE,
    _settings,
    run_of,
    search_layouts,
)
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems.files import load_hardware

LLAMA: dict[str, Any] = {"workload": "llama", "options": {"size": "8b"}, "workers": (64,), "global_batches": (128,)}


def asked(**fields: Any) -> tuple[Question, RunSpec]:
    question = Question(load_hardware("8xh100-nvlink"), **{**LLAMA, **fields})
    return question, next(question.specs("torch-mesh"))


@pytest.mark.parametrize("options", [{"size": "8b"}, {"size": "1b"}, {"depth": 12, "width": 4096}])
def test_screened_bytes_and_seconds_are_near_those_that_are_predicted(options: dict[str, Any]) -> None:
    question, spec = asked(options=options)
    screen = Screen(question.predictor, spec)
    reserved = question.hardware.device.reserved_bytes.value
    for setting in random.Random(7).sample(list(_settings(question, spec)), 25):
        run = run_of(spec, setting)
        assert question.why_not(run) is None
        footprint = strategy("torch-mesh").footprint(run, question.facts)
        held = question.predictor.memory(run, footprint)[0].value + reserved
        assert screen.held_bytes(setting) * MEMORY_TOLERANCE <= held
        predicted = question.predictor.predict(run, footprint).parts.step
        assert screen.step_seconds(setting) * (1 - SECONDS_TOLERANCE) <= predicted


def test_the_best_of_a_small_search_is_the_best_of_all() -> None:
    question, spec = asked(options={"depth": 4, "width": 2048}, workers=(8,), global_batches=(32,))
    found = search_layouts(question, spec)
    every = [run_of(spec, setting) for setting in _settings(question, spec)]
    steps = [prediction.parts.step for run in every if (prediction := question.predictor.predict(run)).fits]
    assert min(prediction.parts.step for prediction in found.predictions) <= min(steps) * 1.01


def test_dimensions_are_bounded_as_practitioners_bound_them() -> None:
    question, spec = asked()
    layouts = {setting.layout for setting in _settings(question, spec)}
    assert {layout.tensor for layout in layouts} == {1, 2, 4, 8}
    assert {layout.context for layout in layouts} == {1}
    assert max(layout.pipeline for layout in layouts) == 16
    assert Layout(shard=64) in layouts and Layout(replicate=8, shard=8) in layouts
    assert all(setting.passes >= setting.layout.pipeline for setting in _settings(question, spec))


def test_long_sequences_are_divided_and_experts_are_dealt() -> None:
    question, spec = asked(options={"size": "8b", "sequence": 131_072}, global_batches=(16,))
    assert {setting.layout.context for setting in _settings(question, spec)} > {1, 2, 4}
    question, spec = asked(workload="mixtral", options={"size": "8x7b"})
    assert {setting.layout.expert for setting in _settings(question, spec)} == {1, 2, 4, 8}


def test_what_the_question_fixes_is_not_searched() -> None:
    question, spec = asked(
        recompute="full", knobs={"microbatches": 8, "schedule": "1f1b"}, layouts=(Layout(pipeline=4, shard=16),)
    )
    (setting,) = _settings(question, spec)
    assert (setting.passes, setting.recompute, setting.stages_per_worker) == (8, "full", 1)


def test_few_of_many_are_predicted() -> None:
    question, spec = asked(workers=(1024,), global_batches=(1024,))
    found = search_layouts(question, spec)
    assert found.screened > 1000 and len(found.predictions) <= MOST_PREDICTED
    works = [(p.spec.layout.tensor, p.spec.layout.pipeline) for p in found.predictions if p.spec.layout]
    assert len(set(works)) == len(works)


def test_what_no_layout_can_hold_is_refused_with_the_least_that_it_takes() -> None:
    question, spec = asked(options={"size": "405b"}, workers=(8,), global_batches=(64,))
    found = search_layouts(question, spec)
    assert not found.predictions and "at the least and has" in str(found.why_not)


def test_several_precisions_are_compared() -> None:
    question, _ = asked(
        options={"size": "1b"}, workers=(8,), strategies=("torch-fsdp",), precision="bf16", other_precisions=("tf32",)
    )
    answer = recommend(question)
    assert {candidate.spec.precision for candidate in answer.ranked} == {"bf16", "tf32"}
    assert answer.pick is not None and answer.pick.spec.precision == "bf16"


def test_what_is_screened_is_below_what_is_predicted_where_hosts_decide() -> None:
    question, spec = asked(options={"size": "1b"})
    screen = Screen(question.predictor, spec)
    split = [each for each in _settings(question, spec) if each.layout.tensor == 8 and each.layout.pipeline == 4]
    for setting in random.Random(7).sample(split, 20):
        predicted = question.predictor.predict(run_of(spec, setting)).parts.step
        assert screen.step_seconds(setting) * (1 - SECONDS_TOLERANCE) <= predicted
