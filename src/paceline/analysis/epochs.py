"""Records of one configuration ─► its epochs one by one: medians over repeats with the range of those repeats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from paceline.analysis.statistics import Band, band_or_none
from paceline.record import Epoch, Record


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """One epoch over all repeats; None where nothing is known."""

    number: int
    samples: int
    seconds: Band
    # Training time from the start of the first epoch to the end of this one; evaluation is not in it.
    elapsed_seconds: Band
    samples_per_second: Band
    train_loss: Band | None = None
    test_loss: Band | None = None
    test_accuracy: Band | None = None
    joules: Band | None = None


def epoch_summaries(records: Sequence[Record]) -> tuple[EpochSummary, ...]:
    """Summarises the good runs of one configuration; epochs that only some of them made are left out."""
    count = min((len(record.epochs) for record in records), default=0)
    elapsed = [list(accumulate(epoch.seconds for epoch in record.epochs)) for record in records]
    return tuple(
        _summary([record.epochs[place] for record in records], [times[place] for times in elapsed])
        for place in range(count)
    )


def _summary(epochs: list[Epoch], elapsed: list[float]) -> EpochSummary:
    def over(value: Callable[[Epoch], float | None]) -> Band | None:
        return band_or_none([number for epoch in epochs if (number := value(epoch)) is not None])

    return EpochSummary(
        number=epochs[0].number,
        samples=epochs[0].samples,
        seconds=Band.of([epoch.seconds for epoch in epochs]),
        elapsed_seconds=Band.of(elapsed),
        samples_per_second=Band.of([epoch.samples_per_second for epoch in epochs]),
        train_loss=over(lambda epoch: epoch.train_loss),
        test_loss=over(lambda epoch: epoch.test_loss),
        test_accuracy=over(lambda epoch: epoch.test_accuracy),
        joules=over(lambda epoch: epoch.joules),
    )
