"""Runs for Weights & Biases, as its client writes them without a network: a folder that `wandb sync` uploads.

A study is a project, a configuration a group, a record a run.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.analysis.labels import configuration_name, run_names
from paceline.errors import UserError
from paceline.export.base import Exporter, points, settings, writing
from paceline.record import Record
from paceline.units import format_count

# Its client makes a folder of this name, with one folder for each run, which ends with the run's identity.
FOLDER = "wandb"
_ID_LENGTH = 16
# What the name of a project may not hold, and how long it may be (its client's own check).
_REFUSED, _LONGEST = r"[/\\#?%:]+", 128


def write(records: Sequence[Record], out: str, of: str) -> str:
    """Adds the runs that the folder does not have yet."""
    wandb = _client()
    with writing(str(Path(out) / FOLDER)):
        pass
    added = 0
    for record, name in zip(records, run_names(records), strict=True):
        if not list((Path(out) / FOLDER).glob(f"offline-run-*-{_identity(record)}")):
            _add(wandb, record, name, out)
            added += 1
    # Its files are whole when the process that writes them has ended.
    wandb.teardown()
    already = f", {len(records) - added} there already" if added < len(records) else ""
    return f"{format_count(added, 'run')} added{already}; upload them: wandb sync {out}/{FOLDER}/offline-run-*"


def _client() -> Any:
    try:
        import wandb
    except ImportError:
        raise UserError(
            "export to wandb needs its client, which is not installed: pip install 'paceline[wandb]'"
        ) from None
    return wandb


def _identity(record: Record) -> str:
    """The same for each export of a record; a run that is made anew is another one."""
    text = f"{record.key} {record.repeat} {record.started_at}"
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]


def _add(wandb: Any, record: Record, name: str, out: str) -> None:
    # Its client greets, asks after git and samples the machine; none of that is about the run.
    quiet = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
    run = wandb.init(
        project=re.sub(_REFUSED, "_", record.study)[:_LONGEST], id=_identity(record), name=name,
        group=configuration_name(record.spec),
        tags=[str(record.status), *sorted({finding.code for finding in record.findings})],
        notes=record.reason, config=settings(record), dir=out, mode="offline", settings=quiet,
    )  # fmt: skip
    for level in ("step", "epoch"):
        run.define_metric(level)
        run.define_metric(f"{level}/*", step_metric=level)
    for row in rows(record):
        run.log(row)
    run.summary.update({"status": str(record.status), "wall_seconds": record.wall_seconds})
    run.finish(exit_code=0 if record.ok else 1)


def rows(record: Record) -> list[dict[str, float]]:
    """The numbers of each step, then of each epoch, with the number that they are drawn against."""
    by_step: dict[tuple[str, int], dict[str, float]] = {}
    for point in points(record):
        level = point.name.partition("/")[0]
        row = by_step.setdefault((level, point.step), {level: point.step, "_timestamp": point.seconds})
        row[point.name] = point.value
    return list(by_step.values())


EXPORTER = Exporter("wandb", "runs for Weights & Biases, in the folder of its offline mode", ".", write)
