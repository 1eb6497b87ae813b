"""The critical batch of a training, from stored runs: searches for a target by batch, else the noise of gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from paceline.analysis.batches.regimes import BatchSearch, Regimes, batch_searches
from paceline.analysis.labels import data_name
from paceline.analysis.rows import Row
from paceline.recipe import Optimizer
from paceline.spec import RunSpec
from paceline.units import format_count

# What a training must share for its critical batch to be another's.
ALIKE = ("workload", "model", "options")
# Batches that are worth asking about, in doublings of the critical one; and the smallest of them.
DOUBLINGS_AROUND = (-2, -1, 0, 1, 2)
LEAST_BATCH = 8


@dataclass(frozen=True)
class SearchedSteps:
    """What a search for a target came to: its fitted curve, and the best learning rate of each batch."""

    target: str
    data: str
    optimizer: Optimizer
    regimes: Regimes
    # Batches with the learning rates that took them to the target in the fewest steps.
    rates: tuple[tuple[int, float], ...]

    def nearest_rate(self, batch: int) -> tuple[int, float]:
        """The batch that was searched nearest to this one, with its best learning rate."""
        return min(self.rates, key=lambda known: abs(log2(known[0] / batch)))


@dataclass(frozen=True)
class CriticalBatch:
    """In samples, with where it may lie, and where that is known from; ends are None where they are not known."""

    value: float
    low: float | None = None
    high: float | None = None
    source: str = "as --critical-batch says"
    # Where a search for a target tells it.
    searched: SearchedSteps | None = None

    def more_samples(self, batch: float) -> tuple[float, float, float]:
        """How many times the least samples a batch needs, and the ends of that; at least once where no end is known."""
        highest = self.high or (self.value if self.low is None else math.inf)
        ends = self.value, highest, self.low or self.value
        value, least, most = (1 + batch / critical for critical in ends)
        return value, least, most

    @property
    def batches_around(self) -> tuple[int, ...]:
        """Powers of two from well below it to well above."""
        middle = round(log2(self.value))
        return tuple(sorted({max(LEAST_BATCH, 2 ** max(0, middle + away)) for away in DOUBLINGS_AROUND}))

    @property
    def text(self) -> str:
        """The number with its interval and its source."""
        low, high = (None if end is None else f"{end:,.0f}" for end in (self.low, self.high))
        ends = f" (90 %: {low or 'not known'} to {high or 'not known'})" if low or high else ""
        return f"about {self.value:,.0f} samples{ends}, {self.source}"


def critical_batch_of(spec: RunSpec, rows: Sequence[Row]) -> CriticalBatch | None:
    """The critical batch of the run's training, from a search for a target before a noise scale; None where unknown."""
    alike = [row for row in rows if all(getattr(row.spec, name) == getattr(spec, name) for name in ALIKE)]
    searches = [search for search in batch_searches(alike) if search.regimes is not None]
    if searches:
        return _of_search(spec, max(searches, key=lambda search: (*_likeness(spec, search.rows[0].spec),
                                                                  len(search.outcomes))))  # fmt: skip
    # An interval from zero on says nothing.
    telling = {row.key: [(number, noise) for number, noise in row.noise if noise.low] for row in alike}
    measured = [row for row in alike if telling[row.key]]
    if not measured:
        return None
    longest = max(measured, key=lambda row: (*_likeness(spec, row.spec), sum(noise.steps for _, noise in row.noise)))
    epoch, noise = max(telling[longest.key], key=lambda known: (known[1].high is not None, known[0]))
    where = f"{longest.spec.strategy} x{longest.spec.workers}, epoch {epoch}{_unlike(spec, longest.spec)}"
    assert noise.scale is not None
    return CriticalBatch(noise.scale, noise.low, noise.high, f"the noise scale of gradients in a stored run ({where})")


def _of_search(spec: RunSpec, search: BatchSearch) -> CriticalBatch:
    assert search.regimes is not None
    fitted, run = search.regimes.critical_batch, search.rows[0].spec
    rates = tuple((outcome.batch, outcome.lr) for outcome in search.outcomes)
    source = f"from {format_count(len(search.rows), 'stored run')} that looked for {search.target}{_unlike(spec, run)}"
    searched = SearchedSteps(search.target, data_name(run), run.optimizer, search.regimes, rates)
    return CriticalBatch(fitted.value, fitted.low, fitted.high, source, searched)


def _likeness(spec: RunSpec, other: RunSpec) -> tuple[bool, bool]:
    """How far the other run is like the one that is asked about: what is equal counts more than how much is known."""
    return spec.dataset == other.dataset, spec.optimizer.name == other.optimizer.name


def _unlike(spec: RunSpec, other: RunSpec) -> str:
    """In what the other run is unlike the one that is asked about, where that may move its critical batch."""
    data = f" on {data_name(other)}" if spec.dataset != other.dataset else ""
    optimizer = f" with {other.optimizer.name}" if spec.optimizer.name != other.optimizer.name else ""
    return data + optimizer
