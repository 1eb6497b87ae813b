"""How many steps at the start of a run are warm-up, from the change in their durations."""

import math
from collections.abc import Sequence
from statistics import pstdev

import numpy as np

# An earlier stretch counts as warm-up only if it is this much slower than the rest; less is chance.
WARM_UP_EXCESS = 0.05
# Steps needed before and after a change to speak of one.
FEWEST_STEPS = 3


def warm_up_steps(seconds: Sequence[float]) -> int:
    """How many steps at the start are slower than what follows, by the change that explains the durations best.

    A change of mean in the logarithm of the durations, accepted when it lowers the squared error by more than chance
    would (the Bayesian information criterion, Schwarz 1978) and the stretch before it is slower by `WARM_UP_EXCESS`.
    """
    count = len(seconds)
    if count < 2 * FEWEST_STEPS or min(seconds) <= 0:
        return 0
    logs = np.log(np.asarray(seconds, float))
    # Rare stalls would dominate the fit, so durations far outside are capped.
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
