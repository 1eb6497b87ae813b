"""How far whole software stacks are from what a data sheet says: the spread that intervals of data sheets have in them.

A stack is one group's programs: its rows are off together, so each counts once, by the mean of its rows. The spread is
the middle of how far stacks are off, over the middle of errors of a normal distribution, so that a few stacks far out,
as some early programs are, do not decide it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log, sqrt
from statistics import mean, median

from paceline.predict.estimate import NORMAL_90, Estimate
from paceline.predict.published.training import TrainingRow

# Half of all normal errors are below this many deviations.
NORMAL_50 = 0.6745


def counted(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """Rows that were predicted as they were run and had no say in how."""
    return [row for row in rows if row.caveat is None and not row.used]


def stack_biases(rows: Iterable[TrainingRow]) -> dict[str, float]:
    """The mean logarithm of predicted over published, by stack."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row.stack, []).append(log(row.predicted.value / row.published))
    return {stack: mean(some) for stack, some in ratios.items()}


def stack_spread(rows: Iterable[TrainingRow]) -> float:
    """The relative deviation of a stack that nothing is known of."""
    return median(abs(bias) for bias in stack_biases(rows).values()) / NORMAL_50


def without_own_say(rows: Sequence[TrainingRow], width_in_rows: float) -> list[TrainingRow]:
    """Rows with the intervals that they would have if their own stack had no say in how wide those are."""
    spreads = {stack: stack_spread([row for row in rows if row.stack != stack]) for stack in stack_biases(rows)}
    return [
        replace(row, predicted=Estimate.around(
            row.predicted.value, sqrt(_deviation(row) ** 2 - width_in_rows**2 + spreads[row.stack] ** 2)))
        for row in rows
    ]  # fmt: skip


def _deviation(row: TrainingRow) -> float:
    return log(row.predicted.high / row.predicted.value) / NORMAL_90
