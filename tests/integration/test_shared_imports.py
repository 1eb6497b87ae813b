"""Runs that share one import of a framework: faster to start, and nothing passes from one to the next."""

from typing import Any

import pytest

from paceline.plan import PlannedRun, complete
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.processes import Starter, start_fresh
from paceline.runs.template import templates
from paceline.spec import RunSpec
from paceline.strategies import strategies, strategy
from paceline.systems import local_system

pytestmark = pytest.mark.alone

SINGLES = [
    pytest.param(chosen.name, id=chosen.name, marks=getattr(pytest.mark, chosen.framework))
    for chosen in strategies().values()
    if chosen.framework in local_system().frameworks and chosen.family == "single"
]


def trained(name: str, start: Starter, **fields: Any) -> Record:
    usual = {"strategy": name, "global_batch": 32, "train_samples": 256, "steps": 6}
    spec = complete(RunSpec.model_validate({**usual, **fields}))
    record = launch(PlannedRun(spec, 0), "templates", local_system(), lambda _event: None, start=start)
    assert record.ok, f"{record.reason}\n{record.log_tail}"
    return record


@pytest.mark.parametrize("name", SINGLES)
def test_nothing_passes_from_a_run_to_the_next(name: str) -> None:
    alone = trained(name, start_fresh)
    with templates() as made:
        start = made.starter(strategy(name))
        before = trained(name, start)
        other = trained(name, start, seed=7, global_batch=64, optimizer={"name": "sgd", "lr": 0.1}, workload="mlp")
        after = trained(name, start)
    # The same bits, not nearly the same: threads, random states and settings are those of a fresh process.
    assert before.losses == after.losses == alone.losses
    assert other.losses != alone.losses


@pytest.mark.parametrize("name", SINGLES)
def test_a_shared_import_is_made_once_and_the_record_says_so(name: str) -> None:
    alone = trained(name, start_fresh)
    with templates() as made:
        start = made.starter(strategy(name))
        shared = trained(name, start), trained(name, start)
    assert alone.startup is not None and not alone.startup.forked
    first, second = (record.startup for record in shared)
    assert first is not None and first.forked
    assert second is not None and second.forked
    # One import, so the same number twice: it stays part of the start-up that is reported, whoever waited for it.
    assert first.import_seconds > 0.1
    assert second.import_seconds == pytest.approx(first.import_seconds, rel=0.2)
