"""The statistics that tables and comparisons need, on lists of numbers of any meaning."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
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


@dataclass(frozen=True)
class Band:
    """The median of some values, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Band":
        """The band of at least one value."""
        return cls(median(values), min(values), max(values))


def band_or_none(values: Sequence[float]) -> Band | None:
    """Median and range, or None without values."""
    return Band.of(values) if values else None


def median_or_none(values: Sequence[float]) -> float | None:
    """The median, or None without values."""
    return median(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Largest minus smallest over the median; None with fewer than two values."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / median(values)


def olympic_mean(values: Sequence[float]) -> float | None:
    """The mean without the best and the worst; with fewer than three values, the mean."""
    if not values:
        return None
    ordered = sorted(values)
    return fmean(ordered[1:-1] if len(ordered) > 2 else ordered)


def variation(values: Sequence[float]) -> float | None:
    """The coefficient of variation: standard deviation over mean; None with fewer than two values."""
    if len(values) < 2 or not fmean(values):
        return None
    return stdev(values) / fmean(values)


def bootstrap(values: Sequence[float]) -> Interval | None:
    """The interval of the median by resampling (Efron, 1979); None with fewer than two values."""
    return _confidence_interval(_medians(values, np.random.default_rng(0))) if len(values) > 1 else None


def bootstrap_ratio(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """The interval of the ratio of two medians, each side resampled by itself."""
    if len(first) < 2 or len(second) < 2:
        return None
    generator = np.random.default_rng(0)
    return _confidence_interval(_medians(first, generator) / _medians(second, generator))


def _medians(values: Sequence[float], generator: np.random.Generator) -> np.ndarray:
    """The median of each resample."""
    sample = np.asarray(values, float)
    medians: np.ndarray = np.median(sample[generator.integers(0, len(sample), (RESAMPLES, len(sample)))], axis=1)
    return medians


def _confidence_interval(values: np.ndarray) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Interval(float(low), float(high))


def rank_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The chance to see sides as far apart as these if both were alike (Mann and Whitney, 1947); exact for few."""
    if len(first) < 2 or len(second) < 2:
        return None
    if min(first) > max(second) or min(second) > max(first):
        # As far apart as they can be: of all orders of the values, two are such.
        return 2 / comb(len(first) + len(second), len(first))
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(first, second, alternative="two-sided").pvalue)


def effect_size(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How often a value of the first is above one of the second, minus how often below: -1 to 1 (Cliff, 1993)."""
    if not first or not second:
        return None
    signs = np.sign(np.subtract.outer(np.asarray(first, float), np.asarray(second, float)))
    return float(signs.mean())
