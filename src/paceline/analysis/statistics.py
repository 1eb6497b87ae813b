"""The statistics that tables and comparisons need, on plain lists. Nothing here knows what the numbers mean."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev, stdev

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
# An earlier stretch counts as warm-up only if it is this much slower than the rest; less is chance.
WARM_UP_EXCESS = 0.05
# Steps needed before and after a change to speak of one.
FEWEST_STEPS = 3


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


def warm_up_steps(seconds: Sequence[float]) -> int:
    """How many steps at the start are slower than what follows, by the change that explains the durations best.

    A change of mean in the logarithm of the durations, accepted when it lowers the squared error by more than chance
    would (the Bayesian information criterion, Schwarz 1978) and the stretch before it is slower by `WARM_UP_EXCESS`.
    """
    count = len(seconds)
    if count < 2 * FEWEST_STEPS or min(seconds) <= 0:
        return 0
    logs = np.log(np.asarray(seconds, float))
    # Of a rare stall more is known by its place than by its length: cap what lies far outside.
    logs = np.minimum(logs, np.median(logs) + 6 * _scatter(logs))
    before = np.cumsum(logs)[:-1]
    sizes = np.arange(1, count)
    # Squared error left by a change after each step, up to a constant.
    gain = before**2 / sizes + (logs.sum() - before) ** 2 / (count - sizes) - logs.sum() ** 2 / count
    # The very first step alone may be slow (imports, compilation); the rest must hold some steps.
    place = int(np.argmax(gain[: count - FEWEST_STEPS])) + 1
    left = max(pstdev(logs) ** 2 * count - gain[place - 1], 1e-12)
    chance = 2 * math.log(count)
    better = count * math.log(max(pstdev(logs) ** 2 * count, 1e-12) / left)
    slower = logs[:place].mean() - logs[place:].mean() > math.log1p(WARM_UP_EXCESS)
    return place if better > chance and slower else 0


def _scatter(values: np.ndarray) -> float:
    """A spread that a few outliers do not move: the median distance from the median, scaled to a normal's deviation."""
    return float(1.4826 * np.median(np.abs(values - np.median(values)))) or 1e-3
