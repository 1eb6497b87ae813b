"""Good runs of one configuration ─► time to a target accuracy, final accuracy, staleness of gradients."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from paceline.analysis.statistics import median_or_none
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.strategies import strategy_of_stored

# The default target, as a share of what synchronous runs come to: near the end, and reached by all but bad runs.
SHARE_OF_FINAL = 0.95


class EpochOutcome(NamedTuple):
    """One epoch of a run."""

    seconds: float
    samples: int
    test_accuracy: float | None
    joules: float | None


class RunOutcome(NamedTuple):
    """What of a good run decides its accuracy, energy and money; small, so that 100,000 runs fit in memory."""

    workers: int
    seed: int
    # Whether it follows the loss of one worker by design.
    synchronous: bool
    epochs: tuple[EpochOutcome, ...]
    # Mean and largest staleness over all updates; None for runs that have none.
    staleness: tuple[float, float] | None
    # Where the joules come from; None where they are not known.
    energy_source: str | None
    idle_watts: float
    watts_per_core: float | None

    @property
    def final_accuracy(self) -> float | None:
        """The accuracy on the test set after the last epoch."""
        return self.epochs[-1].test_accuracy if self.epochs else None

    def epochs_until(self, target: float | None) -> tuple[EpochOutcome, ...]:
        """The epochs up to the first one that reached the target accuracy; none if no epoch did."""
        for number, epoch in enumerate(self.epochs, start=1):
            if target is not None and epoch.test_accuracy is not None and epoch.test_accuracy >= target:
                return self.epochs[:number]
        return ()


def run_outcome(record: Record) -> RunOutcome:
    """The outcome of one good run."""
    energy = record.energy
    return RunOutcome(
        workers=record.spec.workers,
        seed=record.spec.seed,
        synchronous=is_synchronous(record.spec),
        epochs=tuple(
            EpochOutcome(epoch.seconds, epoch.samples, epoch.test_accuracy, epoch.joules) for epoch in record.epochs
        ),
        staleness=staleness(record),
        energy_source=energy.source if energy else None,
        idle_watts=energy.idle_watts if energy else 0.0,
        watts_per_core=energy.watts_per_core if energy else None,
    )


def staleness(record: Record) -> tuple[float, float] | None:
    """Mean and largest staleness over all updates, as workers counted them, or servers where no worker did."""
    summaries = [(rank.role, rank.details["staleness"]) for rank in record.ranks if "staleness" in rank.details]
    counted = [summary for role, summary in summaries if role == "worker"] or [summary for _, summary in summaries]
    updates = sum(summary["updates"] for summary in counted)
    if not updates:
        return None
    mean = sum(summary["mean"] * summary["updates"] for summary in counted) / updates
    return mean, float(max(summary["max"] for summary in counted))


def is_synchronous(spec: RunSpec) -> bool:
    """Whether the run follows the loss of one worker by design."""
    chosen = strategy_of_stored(spec.strategy)
    return chosen is not None and chosen.synchronous


@dataclass(frozen=True, slots=True)
class Convergence:
    """The convergence of one configuration, with the final accuracy over all its seeds; None where it is not known."""

    target_accuracy: float | None = None
    # Runs that reached it; the medians below are given only when all did.
    runs_to_target: int = 0
    epochs_to_target: float | None = None
    seconds_to_target: float | None = None
    seeds: int = 0
    final_accuracy: float | None = None
    final_accuracy_low: float | None = None
    final_accuracy_high: float | None = None
    staleness_mean: float | None = None
    staleness_max: float | None = None


@dataclass(frozen=True, slots=True)
class FinalAccuracy:
    """The final accuracy of a configuration's runs with any seed."""

    seeds: int = 0
    median: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, runs: Sequence[RunOutcome]) -> "FinalAccuracy":
        """Summarises the good runs of configurations that differ in nothing but their seed."""
        finals = [final for run in runs if (final := run.final_accuracy) is not None]
        seeds = len({run.seed for run in runs})
        return cls(seeds, median_or_none(finals), min(finals, default=None), max(finals, default=None))


def summarise_convergence(runs: Sequence[RunOutcome], final: FinalAccuracy, target: float | None) -> Convergence:
    """Summarises the good runs of one configuration; the final accuracy is over its runs with any seed."""
    reached = [epochs for run in runs if (epochs := run.epochs_until(target))]
    all_reached = len(reached) == len(runs)
    stale = [run.staleness for run in runs if run.staleness is not None]
    return Convergence(
        target_accuracy=target,
        runs_to_target=len(reached),
        epochs_to_target=median_or_none([len(epochs) for epochs in reached]) if all_reached else None,
        seconds_to_target=median_or_none([sum(epoch.seconds for epoch in epochs) for epochs in reached])
        if all_reached
        else None,
        seeds=final.seeds,
        final_accuracy=final.median,
        final_accuracy_low=final.low,
        final_accuracy_high=final.high,
        staleness_mean=median_or_none([mean for mean, _ in stale]),
        staleness_max=max((most for _, most in stale), default=None),
    )


def default_target(runs: Iterable[RunOutcome]) -> float | None:
    """The target accuracy of a setting: `SHARE_OF_FINAL` of the synchronous runs' median, down to a whole per cent.

    Without synchronous runs, the median of all runs is taken.
    """
    finals = [(run.synchronous, final) for run in runs if (final := run.final_accuracy) is not None]
    chosen = [final for synchronous, final in finals if synchronous] or [final for _, final in finals]
    # Rounded first, so that 0.95 of exactly 0.8 is 0.76 and not 0.75.
    return math.floor(round(SHARE_OF_FINAL * median(chosen) * 100, 6)) / 100 if chosen else None
