"""A folder that `tensorboard --logdir` opens: curves of every run, and a table of runs by their settings."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from paceline.analysis.labels import configuration_name, run_names
from paceline.export import event_file
from paceline.export.base import Exporter, points, settings, started_seconds, writing
from paceline.record import Record
from paceline.spec import Scalar
from paceline.units import format_count

# What runs are compared by, as columns of the table behind their settings.
METRICS = ("epoch/samples_per_second", "epoch/seconds", "epoch/train_loss", "epoch/test_loss", "epoch/test_accuracy",
           "epoch/joules")  # fmt: skip
# Settings that have a column even where all runs have the same.
ALWAYS = ("workload", "strategy", "workers", "global_batch")
# File systems take 255 bytes; letters beyond ASCII have up to four.
LONGEST_BYTES, LONGEST_NAME, DIGITS = 250, 60, 8
EVENTS = "events.out.tfevents.*.paceline"


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One folder per run under one per study; exporting again replaces what was exported of a run."""
    _write_events(Path(out), 0, [event_file.opening(0), event_file.experiment(0, columns(records), METRICS)])
    for record, name in zip(records, run_names(records), strict=True):
        folder = Path(out) / _file_name(record.study) / _file_name(name)
        _write_events(folder, int(started_seconds(record)), _events(record))
    return f"{format_count(len(records), 'run')}; look at them: tensorboard --logdir {out}"


def columns(records: Sequence[Record]) -> dict[str, Scalar]:
    """Settings in which runs differ, with a value of one of them."""
    run_settings = [_configuration(record) for record in records]
    values = {name: value for fields in run_settings for name, value in fields.items()}
    return {
        name: value
        for name, value in values.items()
        if name in ALWAYS or len({fields.get(name) for fields in run_settings}) > 1
    }


def _configuration(record: Record) -> dict[str, Scalar]:
    """Settings without the number of the repeat: the table has a line for all repeats, with their mean."""
    return {name: value for name, value in settings(record).items() if name != "repeat"}


def _write_events(folder: Path, seconds: int, events: list[bytes]) -> None:
    with writing(str(folder / EVENTS.replace("*", str(seconds)))) as path:
        for old in folder.glob(EVENTS):
            old.unlink()
        path.write_bytes(event_file.framed(events))


def _events(record: Record) -> list[bytes]:
    began = started_seconds(record)
    status = event_file.SUCCESS if record.ok else event_file.FAILURE
    return [
        event_file.opening(began),
        event_file.session_start(began, _configuration(record), configuration_name(record.spec)),
        *(event_file.scalar(point.seconds, point.step, point.name, point.value) for point in points(record)),
        event_file.session_end(began + record.wall_seconds, status),
    ]


def _file_name(text: str) -> str:
    name = re.sub(r"[^\w.=-]+", "_", text).strip("._") or "_"
    if len(name.encode()) <= LONGEST_BYTES:
        return name
    # Runs with names that begin alike stay apart.
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


EXPORTER = Exporter("tensorboard", "a folder of event files for TensorBoard", "paceline-tensorboard", write)
