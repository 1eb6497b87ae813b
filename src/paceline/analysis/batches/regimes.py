"""Steps to a target against the global batch ─► three regimes: perfect scaling, diminishing returns, none left.

Shallue et al., "Measuring the Effects of Data Parallelism on Neural Network Training", JMLR 2019, name the regimes. The
curve is that of McCandlish et al., 2018: steps = least steps x (1 + critical batch / batch).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from paceline.analysis.labels import data_name
from paceline.analysis.rows import Row

# In the first regime, doubling a batch takes at least so many times fewer steps; in the last, at most so many times.
PERFECT_GAIN, LITTLE_GAIN = 1.8, 1.1
# On the curve, doubling batch B gains (B + c) / (B + c / 2) times, c the critical batch: solved for B in parts of c.
PERFECT_PART = (1 - PERFECT_GAIN / 2) / (PERFECT_GAIN - 1)
LITTLE_PART = (1 - LITTLE_GAIN / 2) / (LITTLE_GAIN - 1)
# A critical batch this far beyond what was tried cannot be told from any other.
FARTHEST, GRID = 30.0, 1500
LEAST_BATCHES = 3
# Of the curve, and the share of intervals that hold the true number.
FITTED, COVERED = 2, 0.9
# Steps are known to a twentieth, the most between two looks; this is the variance of their logarithms from that alone.
LEAST_VARIANCE = 0.05**2 / 12


@dataclass(frozen=True)
class Interval:
    """A fitted number with its 90 % interval; an end is None where the batches that were tried do not bound it."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> "Interval":
        """The interval in other units."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Interval(self.value * factor, low, high)


@dataclass(frozen=True)
class Regimes:
    """The fitted curve, and where its regimes begin and end."""

    least_steps: float
    critical_batch: Interval
    # All curves that fit nearly as well: critical batch, logarithm of least steps, and how far that may be off.
    near_curves: tuple[tuple[float, float, float], ...] = ()

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

    def steps_interval(self, batch: float) -> Interval:
        """The same with where the curve may run there."""
        shapes = [math.log1p(critical / batch) for critical, _, _ in self.near_curves]
        lows = [shape + least - off for shape, (_, least, off) in zip(shapes, self.near_curves, strict=True)]
        highs = [shape + least + off for shape, (_, least, off) in zip(shapes, self.near_curves, strict=True)]
        low, high = (math.exp(min(lows)), math.exp(max(highs))) if lows else (None, None)
        return Interval(self.steps(batch), low, high)


def fit_regimes(points: Sequence[tuple[float, float]]) -> Regimes | None:
    """The curve through (batch, steps to target), by least squares of logarithms; None for fewer than three batches.

    Seeds of a batch share its learning rate and what the curve leaves out, so batches are what is independent: each
    counts as the mean of its seeds. The interval has all critical batches whose squared error is not much larger than
    the least, by Fisher's F with as many degrees of freedom as there are batches beyond the two fitted numbers.
    """
    from scipy.special import fdtri

    logs_by_batch: dict[float, list[float]] = defaultdict(list)
    for batch, steps in points:
        logs_by_batch[batch].append(math.log(steps))
    if len(logs_by_batch) < LEAST_BATCHES:
        return None
    batches = np.array(sorted(logs_by_batch))
    logs = np.array([mean(logs_by_batch[batch]) for batch in batches])
    grid = np.geomspace(batches[0] / FARTHEST, batches[-1] * FARTHEST, GRID)
    shapes = np.log1p(grid[:, None] / batches)
    offsets = (logs - shapes).mean(axis=1)
    errors = np.square(logs - shapes - offsets[:, None]).sum(axis=1)
    best, freedom = int(errors.argmin()), len(batches) - FITTED
    variance = max(float(errors[best]) / freedom, LEAST_VARIANCE)
    most = errors[best] + variance * float(fdtri(1, freedom, COVERED))
    inside = np.flatnonzero(errors <= most)
    low, high = int(inside[0]), int(inside[-1])
    return Regimes(
        float(np.exp(offsets[best])),
        Interval(
            float(grid[best]), float(grid[low]) if low > 0 else None, float(grid[high]) if high < GRID - 1 else None
        ),
        tuple(
            (float(grid[place]), float(offsets[place]), math.sqrt((most - errors[place]) / len(batches)))
            for place in inside
        ),
    )


@dataclass(frozen=True)
class BatchOutcome:
    """What the search for a learning rate came to with one batch: steps to the target with the best, of each seed."""

    batch: int
    lr: float
    steps: tuple[float, ...]
    step_seconds: float | None
    # Learning rates that were tried, and those with which every seed came to the target.
    rates: tuple[float, ...]
    reaching_rates: tuple[float, ...]

    @property
    def at_the_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried, so that a better one may lie beyond."""
        return len(self.rates) > 1 and self.lr in (min(self.rates), max(self.rates))


@dataclass(frozen=True)
class BatchSearch:
    """All configurations of one setting that look for one target with different batches."""

    target: str
    outcomes: tuple[BatchOutcome, ...]
    # Batches with which no learning rate came to the target within its budget.
    missed: tuple[int, ...]
    regimes: Regimes | None
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """What all its runs have in common."""
        spec = self.rows[0].spec
        return f"{spec.workload} on {data_name(spec)} · {spec.strategy}, {spec.optimizer.name}"


def batch_searches(rows: Iterable[Row]) -> list[BatchSearch]:
    """Runs on one worker that look for a target, by what they share beside batch, learning rate, seed and length."""
    by_setting: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.measured and row.spec.has_target and row.spec.workers == 1 and row.spec.global_batch is not None:
            by_setting[_setting(row)].append(row)
    return [_search(alike) for alike in by_setting.values() if len({row.spec.global_batch for row in alike}) > 1]


def _setting(row: Row) -> str:
    optimizer = row.spec.optimizer.model_copy(update={"lr": 1.0})
    alike: dict[str, Any] = {"global_batch": 1, "steps": 1, "epochs": None, "seed": 0, "optimizer": optimizer}
    return row.spec.model_copy(update=alike).key()


def _search(rows: Sequence[Row]) -> BatchSearch:
    by_batch: dict[int, dict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_batch[row.spec.samples_per_step][row.spec.optimizer.lr].append(row)
    outcomes = [_outcome(batch, by_rate) for batch, by_rate in sorted(by_batch.items())]
    reached = tuple(outcome for outcome in outcomes if outcome is not None)
    points = [(float(outcome.batch), steps) for outcome in reached for steps in outcome.steps]
    missed = tuple(batch for batch in sorted(by_batch) if batch not in {outcome.batch for outcome in reached})
    return BatchSearch(target_text(rows[0]), reached, missed, fit_regimes(points), tuple(rows))


def _outcome(batch: int, by_rate: dict[float, list[Row]]) -> BatchOutcome | None:
    """The learning rate with the fewest steps, by the median over seeds of which all came to the target."""
    reached = {
        rate: [row.steps_to_target or 0.0 for row in rows]
        for rate, rows in by_rate.items()
        if all(row.steps_to_target is not None for row in rows)
    }
    if not reached:
        return None
    best = min(reached, key=lambda rate: median(reached[rate]))
    seconds = [row.steady_step_seconds for row in by_rate[best] if row.steady_step_seconds]
    return BatchOutcome(
        batch, best, tuple(sorted(reached[best])), median(seconds) if seconds else None, tuple(sorted(by_rate)),
        tuple(sorted(reached)),
    )  # fmt: skip


def target_text(row: Row) -> str:
    """What the run looks for, in words."""
    spec = row.spec
    return f"accuracy {spec.target_accuracy:g}" if spec.target_accuracy is not None else f"loss {spec.target_loss:g}"


def describe_search(search: BatchSearch) -> list[str]:
    """What was found, in sentences: the regimes with their intervals, and what the search leaves open."""
    sentences = []
    batches = [outcome.batch for outcome in search.outcomes]
    if search.regimes is not None:
        regimes, span = search.regimes, (min(batches), max(batches))
        sentences += [
            f"To {search.target}, doubling the batch nearly halves the steps up to about "
            f"{_samples(regimes.perfect_up_to, span)}.",
            f"From about {_samples(regimes.little_from, span)} on it hardly saves any: at least "
            f"{regimes.least_steps:,.0f} steps remain.",
            f"Between them lies the critical batch, {_samples(regimes.critical_batch, span)}: there it takes twice "
            f"the least steps, and twice the least samples.",
        ]
    else:
        sentences.append(
            f"{len(batches)} of the batches came to {search.target}; at least {LEAST_BATCHES} must for their regimes."
        )
    if search.missed:
        missed = ", ".join(f"{batch:,}" for batch in search.missed)
        sentences.append(f"Batch {missed} never came to it within the budget of a run.")
    edges = [outcome for outcome in search.outcomes if outcome.at_the_edge]
    if edges:
        at_edges = ", ".join(f"{outcome.batch:,} ({outcome.lr:g})" for outcome in edges)
        sentences.append(
            f"The best learning rate is at the edge of those tried for batch {at_edges}: a better one may lie beyond."
        )
    return sentences


def _samples(fitted: Interval, span: tuple[int, int]) -> str:
    """A batch with its interval, and a word where it lies outside of the batches that were tried."""
    low, high = (None if end is None else f"{end:,.0f}" for end in (fitted.low, fitted.high))
    ends = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else "any"
    beyond = f"; more than the largest tried, {span[1]:,}" if fitted.value > span[1] else ""
    below = f"; less than the smallest tried, {span[0]:,}" if fitted.value < span[0] else ""
    return f"{fitted.value:,.0f} samples (90 %: {ends}{beyond}{below})"
