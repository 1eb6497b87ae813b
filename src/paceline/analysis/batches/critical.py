"""The critical batch of a training, from stored runs: searches for a target by batch, else the noise of gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.batches.regimes import batch_searches
from paceline.analysis.rows import Row
from paceline.spec import RunSpec
from paceline.units import format_count

# What a training must share for its critical batch to be another's.
ALIKE = ("workload", "model", "options")


@dataclass(frozen=True)
class CriticalBatch:
    """In samples, with where it may lie, and where that is known from; ends are None where they are not known."""

    value: float
    low: float | None = None
    high: float | None = None
    source: str = "as --critical-batch says"

    def more_samples(self, batch: float) -> tuple[float, float, float]:
        """How many times the least samples a batch needs, and the ends of that."""
        ends = self.value, self.high or self.value, self.low or self.value
        value, least, most = (1 + batch / critical for critical in ends)
        return value, least, most

    @property
    def text(self) -> str:
        """The number with its interval and its source."""
        low, high = (None if end is None else f"{end:,.0f}" for end in (self.low, self.high))
        ends = f" (90 %: {low or 'not known'} to {high or 'not known'})" if low or high else ""
        return f"about {self.value:,.0f} samples{ends}, {self.source}"


def critical_batch_of(spec: RunSpec, rows: Sequence[Row]) -> CriticalBatch | None:
    """The critical batch of the run's training, from a search for a target before a noise scale; None where unknown."""
    alike = [row for row in rows if all(getattr(row.spec, name) == getattr(spec, name) for name in ALIKE)]
    for search in batch_searches(alike):
        if search.regimes is not None:
            source = f"from {format_count(len(search.rows), 'stored run')} that looked for {search.target}"
            fitted = search.regimes.critical_batch
            return CriticalBatch(fitted.value, fitted.low, fitted.high, source)
    measured = [row for row in alike if row.noise and row.noise[-1].scale is not None]
    if not measured:
        return None
    longest = max(measured, key=lambda row: sum(noise.steps for noise in row.noise))
    noise = next(noise for noise in reversed(longest.noise) if noise.scale is not None)
    where = f"{longest.spec.strategy} x{longest.spec.workers}, epoch {len(longest.noise)}"
    assert noise.scale is not None
    return CriticalBatch(noise.scale, noise.low, noise.high, f"the noise scale of gradients in a stored run ({where})")
