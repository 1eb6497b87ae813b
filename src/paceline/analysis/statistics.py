"""The statistics that tables and comparisons need, on plain lists. Nothing here knows what the numbers mean."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """Where the true value lies, with the confidence that `CONFIDENCE` states."""

    low: float
    high: float

    def spans(self, value: float) -> bool:
        """Whether the value cannot be ruled out."""
        return self.low <= value <= self.high


def middle(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return median(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Largest minus smallest over the median; None with fewer than two values."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / median(values)


def olympic_mean(values: Sequence[float]) -> float | None:
    """The mean without the best and the worst; of fewer than three values, the plain mean."""
    if not values:
        return None
    ordered = sorted(values)
    return fmean(ordered[1:-1] if len(ordered) > 2 else ordered)


def variation(values: Sequence[float]) -> float | None:
    """The coefficient of variation: standard deviation over mean; None with fewer than two values."""
    if len(values) < 2 or not fmean(values):
        return None
    return stdev(values) / fmean(values)


def bootstrap(
    values: Sequence[float], statistic: Callable[[np.ndarray], np.ndarray] | None = None, seed: int = 0
) -> Interval | None:
    """The interval of a statistic (the median unless said otherwise) by resampling (Efron, 1979).

    `statistic` is given one resample per row. None with fewer than two values: one run says nothing of the next.
    """
    if len(values) < 2:
        return None
    generator, known = np.random.default_rng(seed), np.asarray(values, float)
    drawn = known[generator.integers(0, len(known), (RESAMPLES, len(known)))]
    return _middle_part(statistic(drawn) if statistic else np.median(drawn, axis=1))


def bootstrap_ratio(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Interval | None:
    """The interval of the ratio of two medians, each side resampled by itself."""
    if len(first) < 2 or len(second) < 2:
        return None
    generator = np.random.default_rng(seed)
    above, below = (
        np.median(known[generator.integers(0, len(known), (RESAMPLES, len(known)))], axis=1)
        for known in (np.asarray(first, float), np.asarray(second, float))
    )
    return _middle_part(above / below)


def _middle_part(values: np.ndarray) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Interval(float(low), float(high))


def rank_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The chance to see sides as far apart as these if both were alike (Mann and Whitney, 1947); exact for few."""
    if len(first) < 2 or len(second) < 2:
        return None
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(first, second, alternative="two-sided").pvalue)


def effect_size(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How often a value of the first is above one of the second, minus how often below: -1 to 1 (Cliff, 1993)."""
    if not first or not second:
        return None
    signs = np.sign(np.subtract.outer(np.asarray(first, float), np.asarray(second, float)))
    return float(signs.mean())
