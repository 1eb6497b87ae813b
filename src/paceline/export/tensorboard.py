"""A folder that `tensorboard --logdir` opens: curves of every run, and a table of runs by their settings."""

import re
from collections.abc import Sequence
from pathlib import Path

from paceline.export import event_file
from paceline.export.base import Exporter, points, run_name, settings, started_seconds, writing
from paceline.record import Record
from paceline.units import format_count


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One folder per run under one per study; exporting again replaces what was exported of a run."""
    for record in records:
        folder = Path(out) / _file_name(record.study) / _file_name(run_name(record))
        name = f"events.out.tfevents.{int(started_seconds(record))}.paceline"
        with writing(str(folder / name)) as path:
            for old in folder.glob("events.out.tfevents.*.paceline"):
                old.unlink()
            path.write_bytes(event_file.framed(_events(record)))
    return f"{format_count(len(records), 'run')}; look at them: tensorboard --logdir {out}"


def _events(record: Record) -> list[bytes]:
    began = started_seconds(record)
    status = event_file.SUCCESS if record.ok else event_file.FAILURE
    return [
        event_file.opening(began),
        event_file.session_start(began, settings(record), record.key),
        *(event_file.scalar(point.seconds, point.step, point.name, point.value) for point in points(record)),
        event_file.session_end(began + record.wall_seconds, status),
    ]


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", text).strip("._") or "_"


EXPORTER = Exporter("tensorboard", "a folder of event files for TensorBoard", "paceline-tensorboard", write)
