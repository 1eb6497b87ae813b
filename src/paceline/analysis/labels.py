"""What to call a run: the fields that vary among runs name them, the fields that do not go into the title."""

import re
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from paceline.spec import RunSpec

if TYPE_CHECKING:
    from paceline.analysis.rows import Row

# Fields that every table and figure shows anyway, or that follow from others.
_SHOWN = frozenset(
    {"strategy", "workers", "workload", "dataset", "dataset_copies", "global_batch", "local_batch", "model", "shrunk"}
)
# Fields that a setting's title says, and so no name within it has to.
_IN_TITLES = frozenset({"train_samples", "epochs", "steps"})
# Between the parts of a setting's title.
_SEPARATOR = re.compile(r" · |, | on ")
_SILENT = frozenset({"timeout_seconds", "collective_timeout_seconds", "instrumented"})


def varying_fields(rows: Sequence["Row"]) -> list[str]:
    """Names of fields beyond the usual ones in which the rows differ; knobs, options and optimizer by their parts."""
    flat = [flatten(row.spec) for row in rows]
    names = dict.fromkeys(name for fields in flat for name in fields)
    return [name for name in names if name not in _IN_TITLES and len({repr(fields.get(name)) for fields in flat}) > 1]


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


def data_name(spec: RunSpec, with_copies: bool = True) -> str:
    """The data set with its copies and cut."""
    copies = f" x{spec.dataset_copies}" if spec.dataset_copies > 1 and with_copies else ""
    cut = f" (first {spec.train_samples:,})" if spec.train_samples else ""
    return f"{spec.dataset}{copies}{cut}"


def setting(spec: RunSpec, without: Container[str] = ()) -> str:
    """What a group of comparable runs has in common, as a title; parts named in `without` are what is compared."""
    batch = f"global batch {spec.global_batch}" if spec.scaling == "strong" else f"batch {spec.local_batch} per worker"
    length = f"{spec.epochs} epochs" if spec.epochs else f"{spec.steps} steps"
    place = data_name(spec, with_copies="data" not in without)
    parts = [
        f"on {place}" if "model" in without else f"{spec.workload} on {place}",
        f"{spec.scaling} scaling" if "batch" in without else f"{spec.scaling} scaling, {batch}",
        length,
        *([spec.shrunk.text] if spec.shrunk and "shrunk" not in without else []),
    ]
    return " · ".join(parts)


def groups(rows: Sequence["Row"], without: Container[str] = ()) -> dict[str, list["Row"]]:
    """Rows that belong in one table or panel, by title; figures say elsewhere what was shrunk, and leave it out."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(setting(row.spec, without), []).append(row)
    return grouped


def shortened(titles: Sequence[str]) -> tuple[list[str], str]:
    """Titles without the parts that all of them have, and those parts; a single title stays as it is."""
    parts = [_SEPARATOR.split(title) for title in titles]
    if len(titles) < 2 or len({len(own) for own in parts}) > 1:
        return list(titles), ""
    shared = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    short = [", ".join(part for part, same in zip(own, shared, strict=True) if not same) for own in parts]
    return short, ", ".join(part for part, same in zip(parts[0], shared, strict=True) if same)


def series_by_speed(rows: Sequence["Row"], varying: Sequence[str]) -> list[str]:
    """Names of the series, the fastest first: the same series has the same colour in every figure."""
    best: dict[str, float] = {}
    for row in rows:
        name = series_name(row, varying)
        best[name] = max(best.get(name, 0.0), row.samples_per_second or 0.0)
    return sorted(best, key=lambda name: -best[name])


def strategies_of(rows: Sequence["Row"]) -> list[str]:
    """Names of the strategies that were measured, in the order of the rows."""
    return list(dict.fromkeys(row.spec.strategy for row in rows if row.measured))


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
