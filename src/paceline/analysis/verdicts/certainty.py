"""How sure it is that the runs of two sides differ."""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from math import comb
from statistics import median

from paceline.analysis.statistics import CONFIDENCE, rank_test

# With fewer runs of a side, a difference says nothing of the next run.
LEAST_RUNS = 3
# Medians nearer to each other than this make no difference that matters, however often it is seen.
LEAST_DIFFERENCE = 0.01
# Repeated runs of one configuration lie about this far apart; what is nearer to the best is as good as it.
CLOSE = 0.05
# A table, its headline and its line among others ask the same.
MOST_KEPT = 1 << 17
# With so many runs of each side, chance puts all of one above all of the other in less than 5 % of cases.
SURE_RUNS = next(runs for runs in range(LEAST_RUNS, 10) if 2 / comb(2 * runs, runs) <= 1 - CONFIDENCE)


class Certainty(StrEnum):
    """How sure it is that the runs of one side are faster than those of another, the weakest first."""

    UNKNOWN = "too few runs"
    TIE = "tie"
    LIKELY = "likely"
    SURE = "sure"


def certainty(first: Sequence[float], second: Sequence[float]) -> Certainty:
    """How sure it is that two sides differ, by the number of runs of each and a rank test."""
    return _certainty(tuple(first), tuple(second))


@lru_cache(MOST_KEPT)
def _certainty(first: tuple[float, ...], second: tuple[float, ...]) -> Certainty:
    if min(len(first), len(second)) < LEAST_RUNS:
        return Certainty.UNKNOWN
    if abs(median(first) / median(second) - 1) < LEAST_DIFFERENCE:
        return Certainty.TIE
    separate = min(first) > max(second) or min(second) > max(first)
    if (rank_test(first, second) or 0.0) <= 1 - CONFIDENCE:
        return Certainty.SURE
    return Certainty.LIKELY if separate else Certainty.TIE
