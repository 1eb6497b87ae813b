"""Records of one configuration ─► how soon it reached a target accuracy, where it ended, how stale gradients were."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.statistics import middle
from paceline.record import Epoch, Record
from paceline.strategies import strategies

# The default target, as a share of what synchronous runs come to: near the end, and reached by all but bad runs.
SHARE_OF_FINAL = 0.95


@dataclass(frozen=True)
class Convergence:
    """Of one configuration; the final accuracy is over all seeds of it. None where there is nothing to say."""

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


def converged(records: Sequence[Record], all_seeds: Sequence[Record], target: float | None) -> Convergence:
    """From the good runs of one configuration, and those of the same with any seed."""
    finals = [final for record in all_seeds if (final := final_accuracy(record)) is not None]
    ways = [way for record in records if (way := until(record, target))]
    all_reached = len(ways) == len(records)
    return Convergence(
        target_accuracy=target,
        runs_to_target=len(ways),
        epochs_to_target=middle([len(way) for way in ways]) if all_reached else None,
        seconds_to_target=middle([sum(epoch.seconds for epoch in way) for way in ways]) if all_reached else None,
        seeds=len({record.spec.seed for record in all_seeds}),
        final_accuracy=middle(finals),
        final_accuracy_low=min(finals, default=None),
        final_accuracy_high=max(finals, default=None),
        staleness_mean=middle([stale[0] for record in records if (stale := staleness(record))]),
        staleness_max=max((stale[1] for record in records if (stale := staleness(record))), default=None),
    )


def default_target(records: Iterable[Record]) -> float | None:
    """Of the good runs of one setting: `SHARE_OF_FINAL` of the synchronous ones' median, down to a whole per cent.

    Without synchronous runs those that there are decide.
    """
    finals = [(_synchronous(record), final) for record in records if (final := final_accuracy(record)) is not None]
    chosen = [final for synchronous, final in finals if synchronous] or [final for _, final in finals]
    # Rounded first, so that 0.95 of exactly 0.8 is 0.76 and not 0.75.
    return math.floor(round(SHARE_OF_FINAL * median(chosen) * 100, 6)) / 100 if chosen else None


def final_accuracy(record: Record) -> float | None:
    """On the test set after the last epoch."""
    return record.epochs[-1].test_accuracy if record.epochs else None


def until(record: Record, target: float | None) -> tuple[Epoch, ...]:
    """The epochs up to the first whose accuracy is the target or more; none if that never came."""
    for number, epoch in enumerate(record.epochs, start=1):
        if target is not None and epoch.test_accuracy is not None and epoch.test_accuracy >= target:
            return record.epochs[:number]
    return ()


def staleness(record: Record) -> tuple[float, float] | None:
    """Mean over all updates and the most, of the workers if they kept account; servers count the same updates again."""
    told = [(rank.role, rank.details["staleness"]) for rank in record.ranks if "staleness" in rank.details]
    own = [summary for role, summary in told if role == "worker"] or [summary for _, summary in told]
    updates = sum(summary["updates"] for summary in own)
    if not updates:
        return None
    mean = sum(summary["mean"] * summary["updates"] for summary in own) / updates
    return mean, float(max(summary["max"] for summary in own))


def _synchronous(record: Record) -> bool:
    chosen = strategies().get(record.spec.strategy)
    return chosen is not None and chosen.synchronous
