"""Progress for programs: one JSON object per line, in which everything is JSON."""

import json
import math

import pytest

from paceline.cli.progress import EventLines
from paceline.plan import PlannedRun, complete
from paceline.runs.wire import EpochEvent, LogEvent, LossEvent, StepEvent, UseEvent


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in capsys.readouterr().err.splitlines()]


def test_each_kind_of_news_has_its_event(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EventLines()
    lines.event(StepEvent(epoch=0, step=1, steps=2, samples_per_second=10.0, loss=0.5))
    lines.event(EpochEvent(epoch=0, steps=2, samples_per_second=10.0))
    lines.event(LossEvent(epoch=0, steps=2, losses=(0.5, 0.25)))
    lines.event(UseEvent(cpu_cores=1.5, memory_bytes=1000))
    lines.event(LogEvent(rank=0, text="hello\n"))
    assert [(line["event"], line["kind"]) for line in written(capsys)] == [
        ("progress", "step"), ("progress", "epoch"), ("losses", "losses"), ("use", "use"), ("log", "log"),
    ]  # fmt: skip


def test_what_is_no_number_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EventLines()
    lines.event(StepEvent(epoch=0, step=1, steps=2, samples_per_second=10.0, loss=math.nan))
    lines.event(LossEvent(epoch=0, steps=2, losses=(math.inf, 0.25)))
    step, losses = written(capsys)
    assert (step["loss"], losses["losses"]) == (None, [None, 0.25])


def test_a_run_that_starts_says_how_many_steps_it_will_make(capsys: pytest.CaptureFixture[str], make_spec) -> None:
    spec = complete(make_spec(dataset="mnist-5k", train_samples=1000, global_batch=100, epochs=3))
    EventLines().started(PlannedRun(spec, 0), 1)
    (started,) = written(capsys)
    assert started["steps"] == 30
