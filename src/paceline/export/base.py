"""What an exporter is, and what several of them write about a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.analysis.labels import flatten
from paceline.analysis.tables import frame_of
from paceline.errors import user_can_choose
from paceline.record import Record
from paceline.spec import Scalar
from paceline.units import format_count

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class Exporter:
    """One kind of export: `write` takes records with their steps, a place and a table, and returns a message."""

    name: str
    about: str
    default_out: str
    write: Callable[[Sequence[Record], str, str], str]
    # Whether it writes one table, so that there is a choice of which.
    one_table: bool = False


@dataclass(frozen=True)
class Point:
    """One number of a run: at a step (or an epoch), and at a moment in seconds since 1970."""

    name: str
    step: int
    value: float
    seconds: float


def settings(record: Record) -> dict[str, Scalar]:
    """The settings of a run: fields that are set, nested ones with a dot."""
    spec = record.spec
    shown = {
        "workload": spec.workload,
        "dataset": spec.dataset,
        "dataset_copies": spec.dataset_copies,
        "strategy": spec.strategy,
        "workers": spec.workers,
        "global_batch": spec.samples_per_step,
        "scaling": spec.scaling,
        "repeat": record.repeat,
    }
    fields = {**shown, **flatten(spec)}
    return {
        name: v if isinstance(v, bool | int | float | str) else str(v) for name, v in fields.items() if v is not None
    }


def started_seconds(record: Record) -> float:
    """When the run began, in seconds since 1970."""
    return datetime.fromisoformat(record.started_at).timestamp()


def points(record: Record) -> Iterator[Point]:
    """Losses and durations of each step, then the results of each epoch; moments count only time in steps."""
    slowest = [max(ranks) for ranks in zip(*record.step_seconds.values(), strict=False)]
    moment = started_seconds(record) + (record.startup.total_seconds if record.startup else 0.0)
    for step in range(max(len(slowest), len(record.losses))):
        loss = record.losses[step] if step < len(record.losses) else None
        if step < len(slowest):
            moment += slowest[step]
            yield Point("step/seconds", step, slowest[step], moment)
        if loss is not None:
            yield Point("step/loss", step, loss, moment)
    moment = started_seconds(record) + (record.startup.total_seconds if record.startup else 0.0)
    for epoch in record.epochs:
        moment += epoch.seconds
        values = {
            "epoch/seconds": epoch.seconds,
            "epoch/samples_per_second": epoch.samples_per_second,
            "epoch/train_loss": epoch.train_loss,
            "epoch/test_loss": epoch.test_loss,
            "epoch/test_accuracy": epoch.test_accuracy,
            **{f"epoch/test_{name}": value for name, value in epoch.test_metrics.items()},
            "epoch/joules": epoch.joules,
        }
        yield from (Point(name, epoch.number, v, moment) for name, v in values.items() if v is not None)


def write_table(
    records: Sequence[Record], out: str, of: str, save: Callable[["polars.DataFrame", Path], object]
) -> str:
    """Writes one line per configuration, run, epoch or step, in the way of `save`."""
    frame = frame_of(records, of)
    with writing(out) as path:
        save(frame, path)
    return f"{format_count(frame.height, 'line')}, {format_count(frame.width, 'column')}"


@contextmanager
def writing(out: str) -> Iterator[Path]:
    """The path to write to, with its folder created; an error of the disk becomes a `UserError`."""
    with user_can_choose(f"{out} cannot be written", "place with --out"):
        path = Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
