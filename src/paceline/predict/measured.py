"""What a record says its step took, in the two ways that predictions are held against: wall clock and CPU seconds.

Epochs are the unit: the least disturbed third of them counts, because other load only ever makes one longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from paceline.record import Rank, Record

DISTURBED = "other_load"
COUNTED_SHARE = 1 / 3
# The study that runs of a calibration are stored under.
CALIBRATION_STUDY = "calibration"


@dataclass(frozen=True)
class MeasuredStep:
    """Seconds of one step by wall clock, and CPU seconds of all processes together."""

    wall_seconds: float
    cpu_seconds: float
    disturbed: bool


def measured_step(record: Record) -> MeasuredStep | None:
    """Seconds of a step, from the epochs after the first if there are any."""
    epochs = [epoch for epoch in record.epochs if epoch.steps]
    steady = epochs[1:] or epochs
    if not record.ok or not steady:
        return None
    steps = sum(epoch.steps for epoch in record.epochs)
    # Servers have no epochs; they report what serving took them in all.
    serving = sum(float(rank.details.get("serving_cpu_seconds", 0.0)) for rank in record.ranks)
    return MeasuredStep(
        wall_seconds=least_disturbed([epoch.seconds / epoch.steps for epoch in steady]),
        cpu_seconds=least_disturbed([epoch.cpu_seconds / epoch.steps for epoch in steady]) + serving / steps,
        disturbed=was_disturbed(record),
    )


def was_disturbed(record: Record) -> bool:
    """Whether other programs used the cores meanwhile."""
    return any(finding.code == DISTURBED for finding in record.findings)


def least_disturbed(epochs: Sequence[float]) -> float:
    """The mean of the shortest third."""
    return mean(sorted(epochs)[: max(1, round(len(epochs) * COUNTED_SHARE))])


def peak_above_framework(record: Record) -> float | None:
    """Bytes beyond its framework of the process that held most; on GPUs those that its allocator gave out."""
    if on_device := [int(rank.details["device_peak_bytes"]) for rank in record.ranks if _has_device_peak(rank)]:
        return max(on_device)
    peaks = [rank.memory.peak_bytes - rank.memory.baseline_bytes for rank in record.ranks if rank.memory]
    return max(peaks, default=None)


def _has_device_peak(rank: Rank) -> bool:
    return bool(rank.details.get("device_peak_bytes"))
