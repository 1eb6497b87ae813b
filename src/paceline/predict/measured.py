"""What a record says its step took, in the two ways that predictions are held against: wall clock and CPU seconds.

Epochs are the unit: the calmest third of them counts, because other programs on the machine only ever make one longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import mean

from paceline.record import Epoch, Record

DISTURBED = "other_load"
CALM_SHARE = 1 / 3
# The study that runs of a calibration are stored under.
CALIBRATION_STUDY = "calibration"


@dataclass(frozen=True)
class MeasuredStep:
    """Seconds of one step by wall clock, and CPU seconds of all processes together."""

    wall_seconds: float
    cpu_seconds: float
    disturbed: bool


def measured_step(record: Record) -> MeasuredStep | None:
    """From the epochs after the first, if there are others."""
    epochs = [epoch for epoch in record.epochs if epoch.steps]
    steady = epochs[1:] or epochs
    if not record.ok or not steady:
        return None
    steps = sum(epoch.steps for epoch in record.epochs)
    # Processes that serve have no epochs of their own; they tell what serving took them in all.
    serving = sum(float(rank.details.get("serving_cpu_seconds", 0.0)) for rank in record.ranks)
    return MeasuredStep(
        wall_seconds=_calm([epoch.seconds / epoch.steps for epoch in steady]),
        cpu_seconds=_calm([_cpu(epoch) for epoch in steady]) + serving / steps,
        disturbed=was_disturbed(record),
    )


def was_disturbed(record: Record) -> bool:
    """Whether other programs used the cores meanwhile."""
    return any(finding.code == DISTURBED for finding in record.findings)


def slowest_of_each_step(record: Record) -> float:
    """Seconds that the slowest of workers took for a step, if they went on together; of the calmest epochs."""
    steps = [max(own) for own in zip(*record.step_seconds.values(), strict=True)]
    ends = list(accumulate(epoch.steps for epoch in record.epochs))
    epochs = [steps[start:end] for start, end in pairwise([0, *ends])]
    return _calm([mean(epoch) for epoch in epochs[1:] or epochs])


def _cpu(epoch: Epoch) -> float:
    return epoch.cpu_seconds / epoch.steps


def _calm(values: Sequence[float]) -> float:
    return mean(sorted(values)[: max(1, round(len(values) * CALM_SHARE))])


def peak_above_framework(record: Record) -> float | None:
    """The most that a process held beyond its framework, of the one that held most."""
    found = [rank.memory.peak_bytes - rank.memory.baseline_bytes for rank in record.ranks if rank.memory]
    return max(found, default=None)
