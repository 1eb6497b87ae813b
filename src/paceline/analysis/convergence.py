"""Good runs of one configuration ─► time to a target accuracy, final accuracy, staleness of gradients."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.run_outcome import RunOutcome
from paceline.analysis.statistics import median_or_none

# The default target, as a share of what synchronous runs come to: near the end, and reached by all but bad runs.
SHARE_OF_FINAL = 0.95


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
