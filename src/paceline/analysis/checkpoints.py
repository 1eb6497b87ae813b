"""What checkpoints took: seconds that training stood still for a save, bytes of all ranks together, seconds to load."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.record import RankCheckpoint, Record


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """One configuration over its repeats; None where nothing was saved."""

    # Processes that wrote a part of each checkpoint, and the bytes of all parts.
    checkpoint_writers: int | None = None
    checkpoint_bytes: float | None = None
    # Medians over saves and repeats, of the slowest rank of each.
    checkpoint_save_seconds: float | None = None
    checkpoint_load_seconds: float | None = None
    # What saving adds to the time of training, at the run's `checkpoint_every`.
    checkpoint_share: float | None = None


def summarise_checkpoints(records: Sequence[Record], samples_per_second: float | None) -> CheckpointCost:
    """The costs of checkpoints in good runs of one configuration."""
    saving = [record for record in records if any(rank.checkpoint for rank in record.ranks)]
    if not saving:
        return CheckpointCost()
    spec, seconds = saving[0].spec, median(value for record in saving for value in _save_seconds(record))
    share = None
    if spec.checkpoint_every and samples_per_second:
        share = seconds * samples_per_second / (spec.checkpoint_every * spec.samples_per_step)
    return CheckpointCost(
        checkpoint_writers=len(_parts(saving[0])),
        checkpoint_bytes=median(sum(part.saves[-1].bytes for part in _parts(record)) for record in saving),
        checkpoint_save_seconds=seconds,
        checkpoint_load_seconds=median(max(part.load_seconds for part in _parts(record)) for record in saving),
        checkpoint_share=share,
    )


def _parts(record: Record) -> list[RankCheckpoint]:
    return [rank.checkpoint for rank in record.ranks if rank.checkpoint is not None]


def _save_seconds(record: Record) -> list[float]:
    """Seconds of each save, by its slowest rank, for which all others wait."""
    by_rank = [[save.seconds for save in part.saves] for part in _parts(record)]
    return [max(save) for save in zip(*by_rank, strict=True)]
