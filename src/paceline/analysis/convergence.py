"""Records of one configuration ─► time to a target accuracy, final accuracy, staleness of gradients."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.statistics import median_or_none
from paceline.record import Epoch, Record
from paceline.spec import RunSpec
from paceline.strategies import strategy_of_stored

# The default target, as a share of what synchronous runs come to: near the end, and reached by all but bad runs.
SHARE_OF_FINAL = 0.95


@dataclass(frozen=True)
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


def summarise_convergence(records: Sequence[Record], all_seeds: Sequence[Record], target: float | None) -> Convergence:
    """Summarises the good runs of one configuration; the final accuracy is over its runs with any seed."""
    finals = [final for record in all_seeds if (final := final_accuracy(record)) is not None]
    reached = [epochs for record in records if (epochs := epochs_until(record, target))]
    all_reached = len(reached) == len(records)
    return Convergence(
        target_accuracy=target,
        runs_to_target=len(reached),
        epochs_to_target=median_or_none([len(epochs) for epochs in reached]) if all_reached else None,
        seconds_to_target=median_or_none([sum(epoch.seconds for epoch in epochs) for epochs in reached])
        if all_reached
        else None,
        seeds=len({record.spec.seed for record in all_seeds}),
        final_accuracy=median_or_none(finals),
        final_accuracy_low=min(finals, default=None),
        final_accuracy_high=max(finals, default=None),
        staleness_mean=median_or_none([stale[0] for record in records if (stale := staleness(record))]),
        staleness_max=max((stale[1] for record in records if (stale := staleness(record))), default=None),
    )


def default_target(records: Iterable[Record]) -> float | None:
    """The target accuracy of a setting: `SHARE_OF_FINAL` of the synchronous runs' median, down to a whole per cent.

    Without synchronous runs, the median of all runs is taken.
    """
    finals = [(record.spec, final) for record in records if (final := final_accuracy(record)) is not None]
    chosen = [final for spec, final in finals if is_synchronous(spec)] or [final for _, final in finals]
    # Rounded first, so that 0.95 of exactly 0.8 is 0.76 and not 0.75.
    return math.floor(round(SHARE_OF_FINAL * median(chosen) * 100, 6)) / 100 if chosen else None


def final_accuracy(record: Record) -> float | None:
    """The accuracy on the test set after the last epoch."""
    return record.epochs[-1].test_accuracy if record.epochs else None


def epochs_until(record: Record, target: float | None) -> tuple[Epoch, ...]:
    """The epochs up to the first one that reached the target accuracy; none if no epoch did."""
    for number, epoch in enumerate(record.epochs, start=1):
        if target is not None and epoch.test_accuracy is not None and epoch.test_accuracy >= target:
            return record.epochs[:number]
    return ()


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
