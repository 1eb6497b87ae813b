"""Regimes and measured steps ─► seconds to a target with so many workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.analysis.batches.regimes import BatchSearch
from paceline.analysis.convergence import is_synchronous
from paceline.analysis.rows import Row

# Worker counts that no run had go on to where a batch is this many times the one from which on doubling hardly helps.
BEYOND_LITTLE = 2.0
MOST_WORKERS = 1024
# What training must share for its steps to take as long.
ALIKE = (
    "workload",
    "model",
    "options",
    "dataset",
    "input_shape",
    "classes",
    "precision",
    "execution",
    "device",
    "link",
)


@dataclass(frozen=True)
class TargetTime:
    """Seconds to the target with so many workers of a local batch, and whether steps were timed with as many."""

    local_batch: int
    workers: int
    seconds: float
    measured: bool


def target_times(search: BatchSearch, rows: Sequence[Row]) -> list[TargetTime]:
    """The fitted steps of each global batch times the seconds of a step, measured or as with the most workers."""
    if search.regimes is None:
        return []
    seconds: dict[int, dict[int, float]] = {}
    for row in rows:
        if _is_alike(row, search.rows[0]) and row.steady_step_seconds and not row.oversubscribed:
            local, rest = divmod(row.spec.samples_per_step, row.spec.workers)
            known = seconds.setdefault(local, {}) if not rest else {}
            known[row.spec.workers] = min(row.steady_step_seconds, known.get(row.spec.workers, float("inf")))
    # A local batch is worth a line where more than one worker trained with it.
    lines = {local: known for local, known in seconds.items() if len(known) > 1}
    times: list[TargetTime] = []
    for local, known in sorted(lines.items()):
        for workers in sorted({*known, *_more_workers(search, local, max(known))}):
            step = known.get(workers, known[max(known)])
            times.append(
                TargetTime(local, workers, search.regimes.steps(workers * local) * step, workers in known)
            )  # fmt: skip
    return times


def _more_workers(search: BatchSearch, local: int, most: int) -> list[int]:
    """Doublings beyond the most workers that were measured, until they hardly help."""
    assert search.regimes is not None
    end = min(MOST_WORKERS, BEYOND_LITTLE * search.regimes.little_from.value / local)
    counts = []
    while most * 2 <= end:
        most *= 2
        counts.append(most)
    return counts


def _is_alike(row: Row, other: Row) -> bool:
    def fields(chosen: Row) -> list[Any]:
        return [getattr(chosen.spec, name) for name in ALIKE]

    # The fitted steps are those of workers that stay together.
    return row.measured and is_synchronous(row.spec) and fields(row) == fields(other)
