"""What to call a run: the fields that vary among runs name them, the fields that do not go into the title."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.spec import RunSpec

if TYPE_CHECKING:
    from paceline.analysis.rows import Row

# Fields that every table and figure shows anyway, or that follow from others.
_SHOWN = frozenset(
    {"strategy", "workers", "workload", "dataset", "dataset_copies", "global_batch", "local_batch", "model", "shrunk"}
)
_SILENT = frozenset({"timeout_seconds", "collective_timeout_seconds", "instrumented"})


def varying_fields(rows: Sequence["Row"]) -> list[str]:
    """Names of fields beyond the usual ones in which the rows differ; knobs, options and optimizer by their parts."""
    flat = [flatten(row.spec) for row in rows]
    names = dict.fromkeys(name for fields in flat for name in fields)
    return [name for name in names if len({repr(fields.get(name)) for fields in flat}) > 1]


def flatten(spec: RunSpec) -> dict[str, Any]:
    """The fields of a run that may tell it from others, nested ones with a dot."""
    fields: dict[str, Any] = {}
    for name, value in spec.model_dump(mode="json").items():
        if name in _SHOWN or name in _SILENT:
            continue
        if isinstance(value, dict):
            fields |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            fields[name] = value
    return fields


def series_name(row: "Row", varying: Sequence[str]) -> str:
    """The strategy, and what tells this series from its neighbours."""
    fields = flatten(row.spec)
    marks = [f"{name.rpartition('.')[2]}={fields[name]}" for name in varying if fields.get(name) is not None]
    return " ".join([row.spec.strategy, *marks])


def data_name(spec: RunSpec) -> str:
    """The data set with its copies and cut."""
    copies = f" x{spec.dataset_copies}" if spec.dataset_copies > 1 else ""
    cut = f" (first {spec.train_samples:,})" if spec.train_samples else ""
    return f"{spec.dataset}{copies}{cut}"


def setting(spec: RunSpec) -> str:
    """What a group of comparable runs has in common, as a title."""
    batch = f"global batch {spec.global_batch}" if spec.scaling == "strong" else f"batch {spec.local_batch} per worker"
    length = f"{spec.epochs} epochs" if spec.epochs else f"{spec.steps} steps"
    shrunk = f" · {spec.shrunk.text}" if spec.shrunk else ""
    return f"{spec.workload} on {data_name(spec)} · {spec.scaling} scaling, {batch} · {length}{shrunk}"


def groups(rows: Sequence["Row"]) -> dict[str, list["Row"]]:
    """Rows that belong in one table or panel, by title."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(setting(row.spec), []).append(row)
    return grouped


def unmeasured(rows: Sequence["Row"]) -> list[tuple[str, str, str]]:
    """Name with worker counts, status and reason of rows without a result; what is said of several is said once."""
    varying = varying_fields(rows)
    found: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        if not row.measured:
            status, reason = str(row.status).replace("_", " "), row.reason or "no reason given"
            found.setdefault((series_name(row, varying), status, reason), []).append(row.spec.workers)
    return [
        (f"{name} {', '.join(f'x{count}' for count in counts)}", status, reason)
        for (name, status, reason), counts in found.items()
    ]
