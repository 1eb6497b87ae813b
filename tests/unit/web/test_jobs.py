"""What is understood of a study's words."""

import json
from typing import Any

from paceline.web.jobs import Job


def after(*events: dict[str, Any] | str) -> Job:
    job = Job(1, ("run", "quick"), state="running")
    for event in events:
        job.read_line(event if isinstance(event, str) else json.dumps(event))
    return job


PLANNED = {"event": "planned", "study": "quick", "to_run": 2, "stored": 3, "skipped": 1}
STARTED = {
    "event": "started",
    "number": 1,
    "workload": "mlp",
    "strategy": "fake",
    "workers": 2,
    "repeat": 0,
    "key": "k",
}
PROGRESS = {"event": "progress", "epoch": 0, "samples_per_second": 1234.0}
ENDED = {
    "event": "ended",
    "key": "k",
    "status": "ok",
    "samples_per_second": 2000.0,
    "reason": None,
    "wall_seconds": 1.5,
}


def test_a_run_is_followed_from_its_plan_to_its_end() -> None:
    job = after(PLANNED, STARTED, PROGRESS)
    assert job.snapshot()["now"] == "mlp fake x2, epoch 1, 1,234 samples/s"
    job.read_line(json.dumps(ENDED))
    shown = job.snapshot()
    assert (shown["study"], shown["finished"], shown["total"], shown["stored"], shown["skipped"]) == (
        "quick",
        1,
        2,
        3,
        1,
    )
    assert shown["ended"] == [{"status": "ok", "name": "mlp fake x2", "result": "2,000 samples/s", "took": "1.5 s"}]
    assert shown["left"].startswith("about ") and shown["left"].endswith(" left")
    assert shown["query"] == "?study=quick&workload=mlp&strategy=fake&workers=2"


def test_a_run_that_fails_is_told_with_its_reason() -> None:
    job = after(PLANNED, STARTED, {**ENDED, "status": "timed_out", "samples_per_second": None, "reason": "too slow"})
    assert job.snapshot()["ended"][0] == {
        "status": "timed out", "name": "mlp fake x2", "result": "too slow", "took": "1.5 s",
    }  # fmt: skip


def test_a_run_that_was_interrupted_is_not_counted_as_made() -> None:
    assert after(PLANNED, STARTED, {**ENDED, "status": "interrupted"}).finished == 0


def test_words_that_are_no_event_are_kept_for_the_reader() -> None:
    job = after("paceline: global_batch 30 does not divide", "", '"a string"', "[1]", '{"no": "event"}')
    assert job.snapshot()["messages"].startswith("paceline: global_batch 30 does not divide\n")


def test_an_event_of_a_newer_version_is_passed_over() -> None:
    assert after({"event": "something new"}).snapshot()["messages"] == ""
