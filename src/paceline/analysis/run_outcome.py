"""What of a good run decides its accuracy, energy and money: a small value, so that 100,000 runs fit in memory."""

from typing import NamedTuple

from paceline.record import Record
from paceline.spec import RunSpec
from paceline.strategies import strategy_of_stored


class EpochOutcome(NamedTuple):
    """One epoch of a run."""

    seconds: float
    samples: int
    test_accuracy: float | None
    joules: float | None


class RunOutcome(NamedTuple):
    """One good run."""

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
