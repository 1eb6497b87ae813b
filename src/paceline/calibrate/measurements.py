"""What gauges and runs reported ─► the numbers that a calibration keeps: timings, curves, deviations."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import sqrt
from statistics import mean
from typing import Any

from paceline.calibrate.gpu.messages import TimedOperation
from paceline.calibrate.memory import MeasuredScratch
from paceline.costs.layers import LayerFacts
from paceline.predict.estimate import NORMAL_90
from paceline.predict.measured import least_disturbed, measured_step
from paceline.record import Record
from paceline.systems.hardware import Curve

# Wall clock this much above CPU seconds was spent waiting for a core that something else had.
UNDISTURBED = 1.3
LEAST_DEVIATION = 0.02


def timed_operations(rows: Sequence[dict[str, Any]]) -> list[TimedOperation]:
    """The timings that the gauge reported, as values."""
    return [TimedOperation.model_validate(row) for row in rows]


def layer_scratch(rows: Sequence[dict[str, Any]]) -> list[MeasuredScratch]:
    """Temporary memory of single layers, as the gauge reported it."""
    return [
        MeasuredScratch(
            LayerFacts.from_json(row["layer"]), row["input_elements"], row["batch"], row["first"], row["peak_bytes"]
        )
        for row in rows
    ]


def transfer_curve(rows: Sequence[dict[str, Any]]) -> Curve:
    """Wall clock, or CPU seconds where something else had the cores: gloo's threads are busy all the while."""
    rows = sorted(rows, key=lambda row: row["bytes"])
    seconds = [
        row["seconds"] if row["seconds"] <= UNDISTURBED * row["cpu_seconds"] else row["cpu_seconds"] for row in rows
    ]
    return Curve.through([float(row["bytes"]) for row in rows], never_falling(seconds))


def never_falling(values: Sequence[float]) -> list[float]:
    """Values made non-decreasing: a small transfer that took longer than a large one was disturbed."""
    return list(accumulate(reversed(values), min))[::-1]


def one_worker_seconds(record: Record) -> float:
    """Seconds of a step on one worker: CPU seconds where other load disturbed the wall clock."""
    step = measured_step(record)
    assert step is not None
    return step.cpu_seconds if step.disturbed else min(step.wall_seconds, max(step.cpu_seconds, 1e-9))


def slowest_of_each_step(record: Record) -> float:
    """Step seconds if all workers waited for the slowest in each step, in the least disturbed epochs."""
    steps = [max(ranks) for ranks in zip(*record.step_seconds.values(), strict=True)]
    ends = list(accumulate(epoch.steps for epoch in record.epochs))
    epochs = [steps[start:end] for start, end in pairwise([0, *ends])]
    return least_disturbed([mean(epoch) for epoch in epochs[1:] or epochs])


def deviation_of_a_run(repeats: Sequence[Sequence[float]]) -> float:
    """The relative deviation to expect of another run, from repeated runs of several steps.

    From a few runs it is less certain than a normal curve says, by as much as Student's t is wider (Student 1908).
    """
    freedom = sum(len(runs) - 1 for runs in repeats)
    if not freedom:
        return LEAST_DEVIATION
    from scipy.special import stdtrit

    squares = sum((seconds / mean(runs) - 1) ** 2 for runs in repeats for seconds in runs)
    wider = float(stdtrit(freedom, 0.95)) / NORMAL_90 * sqrt(1 + 1 / (freedom + 1))
    return max(LEAST_DEVIATION, sqrt(squares / freedom) * wider)
