"""Runs in MLflow: a study is an experiment, a record a run.

MLflow's client writes them, so that every kind and version of its stores works.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.analysis.labels import run_names
from paceline.errors import UserError
from paceline.export.base import Exporter, points, settings, started_seconds, writing
from paceline.record import Record, Status
from paceline.units import format_count

# What one request to a tracking server may hold (MLflow's REST API, "Request Limits").
MOST_METRICS, MOST_PARAMS = 1000, 100
# Marks a run as the copy of one record, so that exporting again adds only what is new.
MARK = "paceline.record"
STATUSES = {Status.OK: "FINISHED", Status.INTERRUPTED: "KILLED"}


@dataclass(frozen=True)
class Entry:
    """One record in MLflow's words; times in milliseconds, as MLflow counts."""

    name: str
    mark: str
    status: str
    start_ms: int
    end_ms: int
    params: dict[str, str]
    tags: dict[str, str]
    # Name, value, milliseconds, step.
    metrics: tuple[tuple[str, float, int, int], ...]


def entry(record: Record, name: str) -> Entry:
    """The entry of a record, under that name."""
    start = started_seconds(record)
    tags = {
        "paceline.status": str(record.status),
        "paceline.reason": record.reason or "",
        "paceline.findings": ", ".join(finding.code for finding in record.findings),
        **{f"environment.{name}": str(value) for name, value in record.environment.items() if value},
    }
    return Entry(
        name=name,
        mark=f"{record.key}-{record.repeat}-{record.started_at}",
        status=STATUSES.get(record.status, "FAILED"),
        start_ms=round(start * 1000),
        end_ms=round((start + record.wall_seconds) * 1000),
        params={name: str(value) for name, value in settings(record).items()},
        tags={name: value for name, value in tags.items() if value},
        metrics=tuple((point.name, point.value, round(point.seconds * 1000), point.step) for point in points(record)),
    )


def tracking_uri(out: str) -> str:
    """A URI as it is; a file as the SQLite database that MLflow keeps there."""
    return out if "://" in out or out == "databricks" else f"sqlite:///{Path(out).resolve()}"


def write(records: Sequence[Record], out: str, of: str) -> str:
    """Adds the runs that the store does not have yet."""
    client, refused = _client(tracking_uri(out), out)
    try:
        added = sum(_add(client, study, entries) for study, entries in _by_study(records).items())
    except refused as error:
        raise UserError(f"MLflow at {out} refused the runs: {error}; mend that, or choose another with --out") from None
    already = f", {len(records) - added} there already" if added < len(records) else ""
    uri = tracking_uri(out)
    look = f"; look at them: mlflow ui --backend-store-uri {uri}" if uri.startswith("sqlite:") else ""
    return f"{format_count(added, 'run')} added{already}{look}"


def _client(uri: str, out: str) -> tuple[Any, type[Exception]]:
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UserError(
            "export to mlflow needs MLflow, which is not installed: pip install 'paceline[mlflow]'"
        ) from None
    if uri.startswith("sqlite:///"):
        with writing(out):
            pass
    return mlflow.MlflowClient(tracking_uri=uri), MlflowException


def _by_study(records: Sequence[Record]) -> dict[str, list[Entry]]:
    entries: dict[str, list[Entry]] = {}
    for record, name in zip(records, run_names(records), strict=True):
        entries.setdefault(record.study, []).append(entry(record, name))
    return entries


def _add(client: Any, study: str, entries: list[Entry]) -> int:
    there = client.get_experiment_by_name(study)
    experiment = there.experiment_id if there else client.create_experiment(study)
    marks = set(_marks(client, experiment)) if there else set()
    new = [item for item in entries if item.mark not in marks]
    for item in new:
        _add_run(client, experiment, item)
    return len(new)


def _marks(client: Any, experiment: str) -> Iterator[str]:
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        yield from (run.data.tags[MARK] for run in page if MARK in run.data.tags)
        token = page.token
        if not token:
            return


def _add_run(client: Any, experiment: str, item: Entry) -> None:
    from mlflow.entities import Metric, Param, RunTag

    run = client.create_run(experiment, start_time=item.start_ms, run_name=item.name).info.run_id
    params = [Param(name, value) for name, value in item.params.items()]
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(run, params=params[start : start + MOST_PARAMS])
    metrics = [Metric(*point) for point in item.metrics]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run, metrics=metrics[start : start + MOST_METRICS])
    # The mark comes last: a run that was cut off half-way has none and is exported again.
    client.log_batch(run, tags=[RunTag(name, value) for name, value in {**item.tags, MARK: item.mark}.items()])
    client.set_terminated(run, item.status, end_time=item.end_ms)


EXPORTER = Exporter("mlflow", "runs in an MLflow store: a SQLite file or a tracking server's URI", "mlflow.db", write)
