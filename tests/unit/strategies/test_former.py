"""Former names: what they are now, what is said of it, and what is refused."""

from typing import Any

import pytest

from paceline.analysis.selection import Selector
from paceline.errors import SpecError
from paceline.layout import Layout
from paceline.plan import complete, make_plan
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import strategies, strategy, strategy_of_stored
from paceline.strategies.former import FORMER_NAMES
from paceline.study import Study
from paceline.systems import local_system


def spec_of(name: str, workers: int = 4, **fields: Any) -> RunSpec:
    return RunSpec(strategy=name, workers=workers, global_batch=64, steps=1, **fields)


@pytest.mark.parametrize(
    ("name", "knobs", "layout", "kept"),
    [
        ("torch-ddp-tensor", {}, "replicate=2,tensor=2", {}),
        ("torch-ddp-tensor", {"convolutions": "replicated"}, "replicate=2,tensor=2", {"convolutions": "replicated"}),
        ("torch-fsdp-tensor", {"tensor": 4}, "tensor=4", {}),
        ("torch-ddp-pipeline", {}, "replicate=2,pipeline=2", {"schedule": "gpipe", "microbatches": 4}),
        ("torch-ddp-pipeline", {"stages": 1}, "replicate=4", {}),
        (
            "torch-ddp-pipeline",
            {"stages": 4, "schedule": "1f1b", "balance": "measured"},
            "pipeline=4",
            {"microbatches": 4, "balance": "measured"},
        ),
    ],
)
def test_a_run_is_made_as_the_layout_that_it_was(
    name: str, knobs: dict[str, Any], layout: str, kept: dict[str, Any]
) -> None:
    spec = complete(spec_of(name, knobs=knobs))
    assert (spec.strategy, spec.layout, spec.knobs) == ("torch-mesh", Layout.from_text(layout), kept)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workers": 3}, "torch-ddp-tensor with tensor=2 needs a multiple of 2 workers and the run has 3"),
        ({"knobs": {"tensor": 0}}, "torch-ddp-tensor with tensor=0 needs"),
        ({"layout": "shard=4"}, "torch-ddp-tensor is a layout itself now and takes none; use strategy torch-mesh"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        complete(spec_of("torch-ddp-tensor", **fields))


def test_knobs_of_others_are_passed_over_and_misspelt_ones_are_not() -> None:
    others = {"stages": 4, "schedule": "1f1b", "bucket_mb": 1.0}
    assert complete(spec_of("torch-ddp-tensor", knobs=others)).knobs == {}
    with pytest.raises(SpecError, match="no strategy has a knob 'tensr'; did you mean 'tensor'"):
        complete(spec_of("torch-ddp-tensor", knobs={"tensr": 4}))


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_a_former_name_is_no_strategy_and_what_to_use_is_said(name: str) -> None:
    assert name not in strategies()
    with pytest.raises(SpecError, match=f"{name} is a layout of torch-mesh now; use strategy torch-mesh with a layout"):
        strategy(name)
    known = strategy_of_stored(name)
    assert known is not None
    assert (known.framework, known.synchronous) == ("torch", True)


def test_the_plan_says_what_is_run_instead() -> None:
    study = Study(fixed={"strategy": "torch-ddp-tensor", "workers": 4, "global_batch": 64, "steps": 1})
    plan = make_plan(study, set(), local_system(), probe)
    assert plan.notes == ("torch-ddp-tensor x4 is run as torch-mesh replicate=2,tensor=2",)
    assert [run.spec.strategy for run in (*plan.to_run, *plan.skipped)] == ["torch-mesh"]


def test_stored_runs_are_found_by_the_name_and_the_knobs_that_they_had() -> None:
    stored = spec_of("torch-ddp-pipeline", knobs={"microbatches": 8})
    assert Selector.parse("torch-ddp-pipeline:stages=2,microbatches=8").matches(stored)
    assert not Selector.parse("torch-ddp-pipeline:stages=4").matches(stored)
