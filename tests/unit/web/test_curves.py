"""Curves of a run that is going on, from the events of its command."""

import json
from itertools import pairwise
from typing import Any

import pytest

from paceline.web.curves import MOST_POINTS, Curve, RunCurves
from paceline.web.job import Job

USE = {
    "kind": "use",
    "machine": 0,
    "cpu_cores": 1.5,
    "memory_bytes": 3_000_000,
    "gpu_share": None,
    "gpu_memory_bytes": None,
}


def step(number: int, loss: float | None = None, epoch: int = 0, rate: float = 100.0) -> dict[str, Any]:
    return {"kind": "step", "epoch": epoch, "step": number, "steps": 10, "samples_per_second": rate, "loss": loss}


def epoch(number: int, steps: int = 10) -> dict[str, Any]:
    return {"kind": "epoch", "epoch": number, "steps": steps, "samples_per_second": 100.0}


def test_losses_of_steps_follow_each_other_over_epochs() -> None:
    curves = RunCurves(steps=20)
    for event in (step(4, 2.0), step(8, 1.5), epoch(0), step(4, 1.0, epoch=1)):
        curves.progress(event, 0.0)
    assert curves.loss.points == [(4, 2.0), (8, 1.5), (14, 1.0)]
    assert curves.share_done == 0.7


@pytest.mark.parametrize("late", [False, True], ids=["before the epoch's end is told", "after it"])
def test_the_losses_of_an_epoch_stand_in_place_of_those_that_were_told_on_the_way(late: bool) -> None:
    curves = RunCurves(steps=20)
    told = {"epoch": 1, "steps": 10, "losses": [1.2, 0.9]}
    curves.progress(epoch(0), 0.0)
    curves.progress(step(4, 1.0, epoch=1), 0.0)
    if not late:
        curves.losses(told)
    curves.progress(epoch(1), 0.0)
    if late:
        curves.losses(told)
    assert curves.loss.points == [(15.0, 1.2), (20.0, 0.9)]
    curves.losses({**told, "losses": [7.0, 7.0]})
    assert curves.loss.points == [(15.0, 1.2), (20.0, 0.9)], "another worker's losses of the same epoch are passed over"


def test_a_loss_that_is_no_number_leaves_a_gap() -> None:
    curves = RunCurves(steps=3)
    curves.losses({"epoch": 0, "steps": 3, "losses": [2.0, None, 1.0]})
    assert curves.loss.points == [(1.0, 2.0), (3.0, 1.0)]


def test_a_long_curve_keeps_its_beginning() -> None:
    curve = Curve()
    for number in range(5000):
        curve.add(number, 2.0 if number < 500 else 1.0)
    xs = [x for x, _ in curve.points]
    assert max(after - before for before, after in pairwise(xs)) < 5000 / 20
    assert sum(y == 2.0 for _, y in curve.points) >= len(curve.points) // 20
    assert (xs[0], xs[-1]) == (0, 4999)


def test_a_curve_has_a_bounded_number_of_points_and_keeps_the_newest() -> None:
    curve = Curve()
    for number in range(10_000):
        curve.add(number, float(number))
        assert len(curve.points) <= MOST_POINTS and curve.points[-1] == (number, float(number))
    assert curve.points == sorted(curve.points) and curve.points[0] == (0, 0.0)


def test_the_use_of_several_machines_is_added_up() -> None:
    curves = RunCurves()
    for moment in (1.0, 2.0):
        for machine in (0, 1):
            curves.use({**USE, "machine": machine}, moment)
    assert curves.cores.points[-1] == (2.0, 3.0) and curves.memory.points[-1] == (2.0, 6_000_000)


def test_on_gpus_their_use_and_memory_are_drawn_in_place_of_the_hosts() -> None:
    curves = RunCurves()
    curves.use(USE, 1.0)
    assert [curve["name"] for curve in curves.values()] == ["cores in use", "memory"]
    curves.use({**USE, "gpu_share": 0.5, "gpu_memory_bytes": 2_000_000_000}, 2.0)
    assert [(curve["name"], curve["now"]) for curve in curves.values()] == [
        ("GPU use", "50 %"),
        ("GPU memory", "2 GB"),
    ]


def test_a_job_shows_its_curves_its_log_and_the_time_left_within_its_first_run() -> None:
    job = Job(1, ("run", "quick"), state="running")
    events: list[dict[str, Any]] = [
        {"event": "planned", "study": "quick", "to_run": 2, "stored": 0, "skipped": 0},
        {"event": "started", "workload": "mlp", "strategy": "fake", "workers": 2, "steps": 20},
        {"event": "progress", **step(5, 2.0)},
        {"event": "use", **USE},
        {"event": "log", "rank": 1, "text": "hello\nworld\n"},
    ]
    for event in events:
        job.read_line(json.dumps(event))
    shown = job.snapshot()
    assert [(curve["name"], curve["now"]) for curve in shown["curves"]] == [
        ("loss", "2"), ("samples/s", "100"), ("cores in use", "1.5"), ("memory", "3 MB"),
    ]  # fmt: skip
    assert (shown["log"], shown["share"]) == ("[1] hello\n[1] world", 0.125)
    assert "left" in shown["left"]
    job.read_line(json.dumps(events[1]))
    assert (job.snapshot()["curves"], job.snapshot()["log"]) == ([], ""), "the next run begins anew"


def test_a_failed_run_leaves_the_end_of_its_log() -> None:
    job = Job(1, ("run", "quick"), state="running")
    job.read_line(json.dumps({"event": "ended", "status": "failed", "samples_per_second": None, "reason": "it broke",
                              "wall_seconds": 1.0, "log": "Traceback\nboom"}))  # fmt: skip
    assert job.snapshot()["log"] == "Traceback\nboom"
