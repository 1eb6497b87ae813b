"""Steps to a target against the global batch ─► three regimes: perfect scaling, diminishing returns, none left.

Shallue et al., "Measuring the Effects of Data Parallelism on Neural Network Training", JMLR 2019, name the regimes. The
curve is that of McCandlish et al., 2018: steps = least steps x (1 + critical batch / batch).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from paceline.record import Record

# In the first regime, doubling a batch takes at least so many times fewer steps; in the last, at most so many times.
PERFECT_GAIN, LITTLE_GAIN = 1.8, 1.1
# On the curve, doubling batch B gains (B + c) / (B + c / 2) times, c the critical batch: solved for B in parts of c.
PERFECT_PART = (1 - PERFECT_GAIN / 2) / (PERFECT_GAIN - 1)
LITTLE_PART = (1 - LITTLE_GAIN / 2) / (LITTLE_GAIN - 1)
# A critical batch this far beyond what was tried cannot be told from any other.
FARTHEST, GRID = 30.0, 600
LEAST_BATCHES = 3
RESAMPLES, COVERED = 400, 0.9


@dataclass(frozen=True)
class Interval:
    """A fitted number with its 90 % interval; an end is None where the batches that were tried do not bound it."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> "Interval":
        """The same in other units."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Interval(self.value * factor, low, high)


@dataclass(frozen=True)
class Regimes:
    """The fitted curve, and where its regimes begin and end."""

    least_steps: float
    critical_batch: Interval

    @property
    def perfect_up_to(self) -> Interval:
        """The batch up to which doubling it nearly halves the steps."""
        return self.critical_batch.times(PERFECT_PART)

    @property
    def little_from(self) -> Interval:
        """The batch from which on doubling it hardly saves steps."""
        return self.critical_batch.times(LITTLE_PART)

    def steps(self, batch: float) -> float:
        """Steps to the target with that batch."""
        return self.least_steps * (1 + self.critical_batch.value / batch)


def fit_regimes(points: Sequence[tuple[float, float]]) -> Regimes | None:
    """The curve through (batch, steps to target); None for fewer than three batches."""
    batches, steps = (np.array(values, float) for values in zip(*points, strict=True)) if points else ([], [])
    if len(set(map(float, batches))) < LEAST_BATCHES:
        return None
    limits = float(min(batches)) / FARTHEST, float(max(batches)) * FARTHEST
    grid = np.geomspace(*limits, GRID)
    shapes = np.log1p(grid[:, None] / batches)
    logs = np.log(steps)
    best, least = _fitted(shapes, logs)
    fitted = least + shapes[best]
    # Residuals of so few points are too small by what the two fitted numbers took of them.
    residuals = (logs - fitted) * np.sqrt(len(logs) / max(1, len(logs) - 2))
    random = np.random.default_rng(0)
    again = [
        _fitted(shapes, fitted + random.choice(residuals - residuals.mean(), len(residuals)))[0]
        for _ in range(RESAMPLES)
    ]
    outside = (1 - COVERED) / 2
    low, high = (int(place) for place in np.quantile(again, (outside, 1 - outside), method="nearest"))
    return Regimes(
        float(np.exp(least)),
        Interval(
            float(grid[best]), float(grid[low]) if low > 0 else None, float(grid[high]) if high < GRID - 1 else None
        ),
    )


def _fitted(shapes: np.ndarray, logs: np.ndarray) -> tuple[int, float]:
    """The place on the grid of critical batches, and the logarithm of the least steps, with the least squared error."""
    offsets = (logs - shapes).mean(axis=1)
    errors = np.square(logs - shapes - offsets[:, None]).sum(axis=1)
    best = int(errors.argmin())
    return best, float(offsets[best])


@dataclass(frozen=True)
class BatchOutcome:
    """What the search for a learning rate came to with one batch: steps to the target with the best, of each seed."""

    batch: int
    lr: float
    steps: tuple[int, ...]
    step_seconds: float | None
    # Learning rates that were tried, and those with which every seed came to the target.
    tried: tuple[float, ...]
    reached: tuple[float, ...]

    @property
    def at_the_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried, so that a better one may lie beyond."""
        return len(self.tried) > 1 and self.lr in (min(self.tried), max(self.tried))


@dataclass(frozen=True)
class BatchSearch:
    """All runs of one setting that look for one target with different batches."""

    target: str
    outcomes: tuple[BatchOutcome, ...]
    # Batches with which no learning rate came to the target within its budget.
    missed: tuple[int, ...]
    regimes: Regimes | None
    records: tuple[Record, ...]


def batch_searches(records: Iterable[Record]) -> list[BatchSearch]:
    """Runs on one worker that look for a target, by what they share beside batch, learning rate, seed and length."""
    by_setting: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.ok and record.spec.has_target and record.spec.workers == 1 and record.spec.global_batch is not None:
            by_setting[_setting(record)].append(record)
    return [_search(runs) for runs in by_setting.values() if len({run.spec.global_batch for run in runs}) > 1]


def _setting(record: Record) -> str:
    optimizer = record.spec.optimizer.model_copy(update={"lr": 1.0})
    alike: dict[str, Any] = {"global_batch": 1, "steps": 1, "epochs": None, "seed": 0, "optimizer": optimizer}
    return record.spec.model_copy(update=alike).key()


def _search(runs: Sequence[Record]) -> BatchSearch:
    by_batch: dict[int, dict[float, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_batch[run.spec.samples_per_step][run.spec.optimizer.lr].append(run)
    outcomes = [_outcome(batch, by_rate) for batch, by_rate in sorted(by_batch.items())]
    found = tuple(outcome for outcome in outcomes if outcome is not None)
    points = [(float(outcome.batch), float(steps)) for outcome in found for steps in outcome.steps]
    missed = tuple(batch for batch in sorted(by_batch) if batch not in {outcome.batch for outcome in found})
    return BatchSearch(target_text(runs[0]), found, missed, fit_regimes(points), tuple(runs))


def _outcome(batch: int, by_rate: dict[float, list[Record]]) -> BatchOutcome | None:
    """The learning rate with the fewest steps, by the median over seeds of which all came to the target."""
    reached = {
        rate: [run.steps_to_target or 0 for run in runs]
        for rate, runs in by_rate.items()
        if all(run.steps_to_target is not None for run in runs)
    }
    if not reached:
        return None
    best = min(reached, key=lambda rate: median(reached[rate]))
    seconds = [run.steady_step_seconds for run in by_rate[best] if run.steady_step_seconds]
    return BatchOutcome(
        batch, best, tuple(sorted(reached[best])), median(seconds) if seconds else None, tuple(sorted(by_rate)),
        tuple(sorted(reached)),
    )  # fmt: skip


def target_text(record: Record) -> str:
    """What the run looks for, in words."""
    spec = record.spec
    return f"accuracy {spec.target_accuracy:g}" if spec.target_accuracy is not None else f"loss {spec.target_loss:g}"
