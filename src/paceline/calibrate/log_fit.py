"""A search for the numbers, and the factors of blocks, with which predictions are nearest to logged runs.

Robust least squares on the logarithm of predicted over logged seconds. A number that the runs say nothing about stays
where the description has it. A block that several runs had in common gets a factor of its own, held near one.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, hypot, log
from typing import Any

from paceline.calibrate.log_numbers import FITTED, HOST, placed
from paceline.costs.footprint import Block, Footprint
from paceline.predict.against import Clocks, nodes_of, predictors_of
from paceline.predict.logged import LoggedRun
from paceline.systems.hardware import Hardware
from paceline.systems.software import LoggedBlock

# Of logarithms: an error beyond this counts in proportion, not squared; and the step of numerical derivatives, over
# which kinks of the predictor (hosts or links taking over) are smoothed.
ROBUST, DERIVATIVE_STEP = 0.1, 0.01
# Moving a number by its spread weighs as much as one run that is so far off.
WORTH_OF_DESCRIPTION = 0.05
# How far blocks differ from what is fitted, and the most, in logarithms. Blocks that so many runs have in common are
# fitted with the numbers; what a single one shows decides no number.
BLOCK_SPREAD, BLOCK_MOST, LEAST_OF_BLOCK = 0.1, 0.7, 2
# A run of the rarer kind, within a node or over several, weighs at most so many times as much.
MOST_WEIGHT = 2.0
# Hosts of some software take several times as long as described.
HOST_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
# Steps of the search; from a fit of nearly the same runs fewer are enough.
MOST_STEPS, MOST_STEPS_AGAIN = 20, 4
# A run with its footprint, which a fit does not change.
Prepared = tuple[LoggedRun, Footprint]


@dataclass(frozen=True)
class Fit:
    """Fitted numbers in the order of `FITTED`, factors of blocks, and what was left of the errors without these.

    `without` are the numbers that fit best where blocks have no factors.
    """

    values: tuple[float, ...]
    factors: Mapping[Block, float]
    cost: float
    without: tuple[float, ...]

    def hardware(self, start: Hardware, source: str) -> Hardware:
        """The system with all of them."""
        return with_blocks(placed(start, self.values, source), self.factors)

    def without_blocks(self, start: Hardware) -> Hardware:
        """The system with the numbers alone, as blocks are predicted that no run had."""
        return with_blocks(placed(start, self.without, "numbers without factors of blocks"), {})


def with_blocks(hardware: Hardware, factors: Mapping[Block, float]) -> Hardware:
    """The system with these factors of blocks."""
    assert hardware.software is not None
    blocks = tuple(LoggedBlock(**block._asdict(), factor=factor) for block, factor in sorted(factors.items()))
    return hardware.model_copy(update={"software": hardware.software.model_copy(update={"blocks": blocks})})


def block_of(footprint: Footprint) -> Block | None:
    """The block that ranks of a run have in common."""
    work = footprint.groups[0].work
    return work.block if work else None


def log_errors(runs: Sequence[Prepared], hardware: Hardware, clocks: Clocks | None = None) -> list[float]:
    """Logarithms of predicted over logged seconds."""
    predictors = predictors_of([run for run, _ in runs], hardware, clocks)
    return [
        log(predictor.parts(run.spec, footprint).step / run.step_seconds)
        for (run, predictor), (_, footprint) in zip(predictors, runs, strict=True)
    ]


def fit_runs(runs: Sequence[Prepared], start: Hardware, near: Fit | None = None) -> Fit:
    """What fits best; `near` is a fit of nearly the same runs, from which fewer steps are enough."""
    return _Search(runs, start).fit(near)


@dataclass(frozen=True)
class _Search:
    """The errors of some runs as a function of the logarithms of all that is fitted: numbers first, then blocks."""

    runs: Sequence[Prepared]
    start: Hardware
    _clocks: dict[tuple[float, ...], Clocks] = field(default_factory=dict)

    def fit(self, near: Fit | None) -> Fit:
        """All numbers as if blocks did not differ, then factors of blocks with the numbers that are of no block."""
        everything = [*range(len(FITTED))]
        first = [log(value) for value in near.without] if near else self._with_busy_hosts()
        numbers, _, cost = self._solve(first, everything, [], MOST_STEPS_AGAIN if near else MOST_STEPS)
        beside = [place for place, number in enumerate(FITTED) if not number.of_blocks]
        blocks = self._blocks()
        logs, factors, _ = self._solve(numbers, beside, blocks, MOST_STEPS_AGAIN)
        known = dict(zip(blocks, map(exp, factors), strict=True))
        known |= self._single_blocks(self._errors(logs, factors, blocks), known)
        return Fit(tuple(map(exp, logs)), known, cost, tuple(map(exp, numbers)))

    def _solve(
        self, start: Sequence[float], free: Sequence[int], blocks: Sequence[Block], most_steps: int
    ) -> tuple[list[float], list[float], float]:
        """Logarithms of numbers and of blocks' factors, and what is left of errors; numbers that are not free stay."""
        from scipy.optimize import least_squares

        numbers = [FITTED[place] for place in free]
        usual = [*(log(number.start(self.start)) for number in numbers), *[0.0] * len(blocks)]
        low = [*(log(number.least) for number in numbers), *[-BLOCK_MOST] * len(blocks)]
        high = [*(log(number.most) for number in numbers), *[BLOCK_MOST] * len(blocks)]
        spreads = [*(number.spread for number in numbers), *[BLOCK_SPREAD] * len(blocks)]
        weights = _weights(self.runs, self.start)

        def filled(logs: Any) -> tuple[list[float], list[float]]:
            whole = list(start)
            for place, value in zip(free, logs, strict=False):
                whole[place] = float(value)
            return whole, [float(value) for value in logs[len(free) :]]

        def residuals(logs: Any) -> list[float]:
            moved = zip(logs, usual, spreads, strict=True)
            errors = self._errors(*filled(logs), blocks)
            return [
                *(weight * error for weight, error in zip(weights, errors, strict=True)),
                *(WORTH_OF_DESCRIPTION * (value - middle) / spread for value, middle, spread in moved),
            ]

        # A search does not start on a bound.
        first = [
            min(max(value, least + DERIVATIVE_STEP), most - DERIVATIVE_STEP)
            for value, least, most in zip(
                [*(start[place] for place in free), *usual[len(free) :]], low, high, strict=True
            )
        ]
        of_block: dict[Block | None, int] = {block: len(free) + number for number, block in enumerate(blocks)}
        places = [of_block.get(block_of(footprint)) for _, footprint in self.runs]
        solution = least_squares(
            residuals, first, bounds=(low, high), loss="soft_l1", f_scale=ROBUST, x_scale=spreads, xtol=1e-4,
            max_nfev=most_steps, jac=lambda logs: _derivatives(residuals, logs, len(free), places),
        )  # fmt: skip
        return (*filled(solution.x), float(solution.cost))

    def _single_blocks(self, errors: Sequence[float], factors: Mapping[Block, float]) -> dict[Block, float]:
        """Factors of blocks that one run had: what is left of its error, less what chance may be of it."""
        share = 1 / (1 + (WORTH_OF_DESCRIPTION / BLOCK_SPREAD) ** 2)
        singles = ((block_of(footprint), error) for (_, footprint), error in zip(self.runs, errors, strict=True))
        return {
            block: exp(min(BLOCK_MOST, max(-BLOCK_MOST, -share * error)))
            for block, error in singles
            if block is not None and block not in factors
        }

    def _blocks(self) -> list[Block]:
        counts = Counter(block_of(footprint) for _, footprint in self.runs)
        return [block for block, count in counts.items() if block is not None and count >= LEAST_OF_BLOCK]

    def _errors(self, logs: Sequence[float], factors: Sequence[float], blocks: Sequence[Block]) -> list[float]:
        hardware = placed(self.start, [exp(value) for value in logs], "a number that is being fitted")
        hardware = with_blocks(hardware, dict(zip(blocks, map(exp, factors), strict=True)))
        key = (*(value for value, number in zip(logs, FITTED, strict=True) if number.of_passes), *factors)
        if key not in self._clocks:
            # Derivatives come back to the numbers before; nothing older does.
            while len(self._clocks) > 1:
                self._clocks.pop(next(reversed(self._clocks)))
            self._clocks[key] = {}
        return log_errors(self.runs, hardware, self._clocks[key])

    def _with_busy_hosts(self) -> list[float]:
        """A start with slow hosts: hosts faster than their devices have no effect, and so no gradient."""
        described = [log(number.start(self.start)) for number in FITTED]
        place = next(place for place, number in enumerate(FITTED) if number.name == HOST)
        starts = [
            [value + log(factor) if index == place else value for index, value in enumerate(described)]
            for factor in HOST_FACTORS
        ]
        return min(starts, key=lambda start: sum(hypot(1, error / ROBUST) for error in self._errors(start, [], [])))


def _derivatives(residuals: Callable[[Any], list[float]], logs: Any, numbers: int, places: Sequence[int | None]) -> Any:
    """By each number in turn, and by all factors at once: a run depends on that of its own block alone."""
    import numpy

    here, size = numpy.array(residuals(logs)), len(logs)
    table = numpy.zeros((len(here), size))
    for place in range(numbers):
        moved = numpy.array(logs)
        moved[place] += DERIVATIVE_STEP
        table[:, place] = (numpy.array(residuals(moved)) - here) / DERIVATIVE_STEP
    moved = numpy.array(logs)
    moved[numbers:] += DERIVATIVE_STEP
    slopes = (numpy.array(residuals(moved)) - here) / DERIVATIVE_STEP
    for row, column in enumerate(places):
        if column is not None:
            table[row, column] = slopes[row]
    for place in range(numbers, size):
        # Its own penalty stands behind the runs.
        table[len(places) + place, place] = slopes[len(places) + place]
    return table


def _weights(runs: Sequence[Prepared], hardware: Hardware) -> list[float]:
    """Weights of runs: the rarer of single-node and multi-node runs weighs more."""
    within = [nodes_of(run, hardware) == 1 for run, _ in runs]
    weights = {}
    for kind in set(within):
        share = within.count(kind) / len(within)
        weights[kind] = min(MOST_WEIGHT, max(1.0, (1 / (2 * share)) ** 0.5))
    return [weights[kind] for kind in within]
