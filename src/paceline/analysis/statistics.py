"""The statistics that tables and comparisons need, on lists of numbers of any meaning."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb
from statistics import fmean, median

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
# Values of the smaller side up to which a rank test counts orders, as SciPy does; it takes a second to import.
MOST_FOR_EXACT = 8


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value lies, with the confidence that `CONFIDENCE` states."""

    low: float
    high: float

    def spans(self, value: float) -> bool:
        """Whether the value cannot be ruled out."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Band:
    """The median of some values, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Band":
        """The band of at least one value."""
        return cls(_median(values), min(values), max(values))


def band_or_none(values: Sequence[float]) -> Band | None:
    """Median and range, or None without values."""
    return Band.of(values) if values else None


def median_or_none(values: Sequence[float]) -> float | None:
    """The median, or None without values."""
    return _median(values) if values else None


def _median(values: Sequence[float]) -> float:
    """What `statistics.median` gives, in a third of its time for a few values, of which there are millions."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


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
    mean = fmean(values) if len(values) > 1 else 0.0
    if not mean:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) / mean


def bootstrap(values: Sequence[float]) -> Interval | None:
    """The interval of the median by resampling (Efron, 1979); None with fewer than two values."""
    if len(values) < 2:
        return None
    ordered = sorted(values)
    medians = sorted(((ordered[low] + ordered[high]) / 2, count) for low, high, count in _middle_places(len(values)))
    tail = (1 - CONFIDENCE) / 2
    return Interval(*(_quantile(medians, share) for share in (tail, 1 - tail)))


@lru_cache(maxsize=64)
def _middle_places(count: int) -> list[tuple[int, int, int]]:
    """The two middle places of each resample of so many sorted values, each pair once with how often it comes.

    They depend on the number of values alone, so that thousands of configurations cost one drawing.
    """
    places = np.sort(np.random.default_rng(0).integers(0, count, (RESAMPLES, count)), axis=1)
    pairs, counts = np.unique(places[:, [(count - 1) // 2, count // 2]], axis=0, return_counts=True)
    return [(low, high, times) for (low, high), times in zip(pairs.tolist(), counts.tolist(), strict=True)]


def _quantile(values: Sequence[tuple[float, int]], share: float) -> float:
    """The quantile of `RESAMPLES` sorted values, each of which comes with how often it is there."""
    place = share * (RESAMPLES - 1)
    ends, until = list[float](), 0
    for value, times in values:
        until += times
        ends += [value] * ((until > int(place)) + (until > int(place) + 1) - len(ends))
    low, high = ends[:2]
    return low + (high - low) * (place % 1)


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
    if min(len(first), len(second)) <= MOST_FOR_EXACT and len({*first, *second}) == len(first) + len(second):
        above = sum(value > other for value in first for other in second)
        further = _orders(len(first), len(second))[max(above, len(first) * len(second) - above) :]
        return min(1.0, 2 * sum(further) / comb(len(first) + len(second), len(first)))
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(first, second, alternative="two-sided").pvalue)


@cache
def _orders(first: int, second: int) -> list[int]:
    """In how many orders of so many values of two sides, so many pairs have that of the first side above."""
    # Orders of the values of one side among those of the other, one value more at a time: a Gaussian binomial.
    counts = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        for place in range(second + size, first * second + 1)[::-1]:
            counts[place] -= counts[place - second - size]
        for place in range(size, first * second + 1):
            counts[place] += counts[place - size]
    return counts


def effect_size(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How often a value of the first is above one of the second, minus how often below: -1 to 1 (Cliff, 1993)."""
    if not first or not second:
        return None
    signs = np.sign(np.subtract.outer(np.asarray(first, float), np.asarray(second, float)))
    return float(signs.mean())
