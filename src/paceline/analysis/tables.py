"""Records as flat tables at four levels of detail, for files and data frames: configurations, runs, epochs, steps."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline.analysis.frame import flat_rows, same_columns, to_frame
from paceline.analysis.labels import flatten, run_names
from paceline.analysis.rows import summarise
from paceline.catalogue import choose
from paceline.record import Epoch, Record

if TYPE_CHECKING:
    import polars

Line = dict[str, Any]
_NAMED = ("workload", "dataset", "dataset_copies", "strategy", "workers", "global_batch", "local_batch")


def configurations(records: Sequence[Record]) -> list[Line]:
    """One line per configuration: medians over its repeats."""
    return flat_rows(summarise(records))


def runs(records: Sequence[Record]) -> list[Line]:
    """One line per run: what ran, how it ended, its last epoch, and the remaining settings."""
    return same_columns(
        [{**_identity(record, name), **_outcome(record), **flatten(record.spec)} for record, name in _named(records)]
    )


def epochs(records: Sequence[Record]) -> list[Line]:
    """One line per epoch of every run."""
    lines = [
        {**_identity(record, name), "epoch": epoch.number,
         **epoch.model_dump(exclude={"number", "noise", "test_metrics"}),
         "samples_per_second": epoch.samples_per_second, **_noise(epoch), **_metrics(epoch)}
        for record, name in _named(records)
        for epoch in record.epochs
    ]  # fmt: skip
    return same_columns(lines)


def _metrics(epoch: Epoch) -> Line:
    return {f"metric_{name}": value for name, value in epoch.test_metrics.items()}


def steps(records: Sequence[Record]) -> list[Line]:
    """One line per optimizer step and rank: the raw durations, and the loss of the global batch."""
    return [
        {**_identity(record, name), "rank": rank, "step": step, "seconds": duration,
         "loss": record.losses[step] if step < len(record.losses) else None}
        for record, name in _named(records)
        for rank, durations in sorted(record.step_seconds.items())
        for step, duration in enumerate(durations)
    ]  # fmt: skip


TABLES: dict[str, Callable[[Sequence[Record]], list[Line]]] = {
    "configurations": configurations,
    "runs": runs,
    "epochs": epochs,
    "steps": steps,
}


def table_of(records: Sequence[Record], of: str = "configurations") -> list[Line]:
    """The table with this name; every line has the same columns."""
    return choose(of, TABLES, "table of results")(records)


def frame_of(records: Sequence[Record], of: str = "configurations") -> "polars.DataFrame":
    """The table with this name as a polars table."""
    return to_frame(table_of(records, of))


def _noise(epoch: Epoch) -> Line:
    """Columns of runs that measured the noise of their gradients."""
    noise = epoch.noise
    return {} if noise is None else {"noise_scale": noise.scale, "noise_low": noise.low, "noise_high": noise.high}


def _named(records: Sequence[Record]) -> list[tuple[Record, str]]:
    return list(zip(records, run_names(records), strict=True))


def _identity(record: Record, name: str) -> Line:
    """The columns that identify a run."""
    spec = record.spec.model_dump(mode="json", include=set(_NAMED))
    return {
        "run": record.id, "name": name, "key": record.key, "study": record.study,
        **{field: spec[field] for field in _NAMED}, "repeat": record.repeat, "instrumented": record.spec.instrumented,
    }  # fmt: skip


def _outcome(record: Record) -> Line:
    steady = record.steady
    return {
        "status": str(record.status),
        "reason": record.reason,
        "started_at": record.started_at,
        "wall_seconds": record.wall_seconds,
        "startup_seconds": record.startup.total_seconds if record.startup else None,
        "epochs_done": len(record.epochs),
        "first_epoch_samples_per_second": record.epochs[0].samples_per_second if record.epochs else None,
        "samples_per_second": steady.samples_per_second if steady else None,
        "epoch_seconds": steady.seconds if steady else None,
        "train_loss": steady.train_loss if steady else None,
        "test_loss": steady.test_loss if steady else None,
        "test_accuracy": steady.test_accuracy if steady else None,
        **(_metrics(steady) if steady else {}),
        "steady_step_seconds": record.steady_step_seconds,
        "joules_per_epoch": steady.joules if steady else None,
        "energy_source": record.energy.source if record.energy else None,
        "peak_memory_bytes": max((rank.peak_memory_bytes for rank in record.ranks), default=None),
        "findings": ",".join(finding.code for finding in record.findings),
    }
