"""Names of runs and titles of settings: fields that vary name the runs, fields that do not are in the title."""

import re
from collections.abc import Container, Iterable, Sequence, Set
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from paceline.analysis.configurations.differences import SameSpecs, differs, marks
from paceline.recipe import SCHEDULE_FIELDS, Optimizer
from paceline.record import Record, Status
from paceline.spec import RunSpec
from paceline.workloads.user_model import USER_DATA

if TYPE_CHECKING:
    from paceline.analysis.rows import Row

# Fields that every table and figure shows anyway, or that follow from others.
_SHOWN = frozenset(
    {
        "strategy",
        "workers",
        "workload",
        "dataset",
        "dataset_copies",
        "global_batch",
        "local_batch",
        "model",
        "script",
        "shrunk",
    }
)
# Fields that a setting's title says, and so no name within it has to.
_IN_TITLES = frozenset({"train_samples", "epochs", "steps", "machines"})
# Fields that a setting's title says in words of its own.
_WORDED_IN_TITLES = frozenset({"device", "slices", "link"})
# Between the parts of a setting's title.
_SEPARATOR = re.compile(r" · |, | on ")
# What to call a title that has no part but those of all the others.
_NOTHING_MORE = "nothing else set"
# Of a setting whose script does not say how many samples its steps have.
STEPS_MARK = "steps in place of samples"
# Fields with their default are not named.
_DEFAULTS = {name: field.default for name, field in RunSpec.model_fields.items()}
# Fields that came later, with their defaults: results without them keep the columns that they had.
_LATER = {name: _DEFAULTS[name] for name in ("noise_scale", "target_accuracy", "target_loss")} | {
    f"optimizer.{name}": Optimizer.model_fields[name].default for name in ("weight_decay_on", *SCHEDULE_FIELDS)
}
# Lists of runs whose varying settings are kept.
MOST_KEPT = 256
_SILENT = frozenset({"timeout_seconds", "collective_timeout_seconds", "instrumented"})
# Fields that may tell one run from another.
_TELLING = tuple(name for name in RunSpec.model_fields if name not in _SHOWN | _SILENT)
_telling_values = attrgetter(*_TELLING)
# Types whose values are written into JSON as they are.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def varying_fields(rows: Sequence["Row"]) -> list[str]:
    """Fields in which the rows differ, beyond those that tables always show; knobs and options one by one."""
    return varying_settings([row.spec for row in rows])


def varying_settings(specs: Iterable[RunSpec]) -> list[str]:
    """Settings in which runs differ that are still to be made."""
    return [*_varying_settings(SameSpecs([*specs]))]


# Tables, titles and sentences ask about the same runs in turn.
@lru_cache(MOST_KEPT)
def _varying_settings(same: SameSpecs) -> tuple[str, ...]:
    specs = same.specs
    columns = zip(*map(_telling_values, specs), strict=True)
    unequal = {name: values for name, values in zip(_TELLING, columns, strict=False) if differs(values)}
    # Thousands of runs have a few values each.
    unlike = dict(zip(marks([*unequal.values()]), specs, strict=True)) if unequal else {}
    flat = [flatten(spec, unequal.keys()) for spec in unlike.values()]
    names = dict.fromkeys(name for fields in flat for name in fields)
    return tuple(
        name for name in names if name not in _IN_TITLES and len({repr(fields.get(name)) for fields in flat}) > 1
    )


def flatten(spec: RunSpec, only: Set[str] | None = None) -> dict[str, Any]:
    """The fields that may tell a run from others, or `only` some; nested fields have a dot in their name."""
    fields: dict[str, Any] = {}
    for name in _TELLING:
        if only is not None and name not in only:
            continue
        value = getattr(spec, name)
        if type(value) not in _PLAIN:
            value = spec.model_dump(mode="json", include={name})[name]
        if isinstance(value, dict):
            fields |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            fields[name] = value
    return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


def configuration_name(spec: RunSpec) -> str:
    """All that is not as usual about a run, in words that are the same wherever it is named."""
    fields = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(_SHOWN | _SILENT | {"layout"}))
    marks = []
    for name, value in fields.items():
        for inner, inner_value in value.items() if isinstance(value, dict) else ((name, value),):
            marks.append(f"{inner}={inner_value}")
    copies = spec.dataset_copies if spec.dataset_copies > 1 else None
    sizes = {"batch": spec.global_batch, "batch per worker": spec.local_batch, "copies": copies}
    words = [f"{name} {size}" for name, size in sizes.items() if size is not None]
    shrunk = [spec.shrunk.scale] if spec.shrunk is not None else []
    data = "" if spec.dataset is None or spec.dataset == USER_DATA else f" on {spec.dataset}"
    return ", ".join([f"{spec.workload}{data} {spec.spread_over}", *words, *marks, *shrunk])


def run_names(records: Sequence[Record]) -> list[str]:
    """A name for each run that people can read. Runs of files that were changed in between are told apart by number."""
    versions: dict[str, list[str]] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        keys = versions.setdefault(_run_name(record), [])
        if record.key not in keys:
            keys.append(record.key)
    names = []
    for record in records:
        version = versions[_run_name(record)].index(record.key) + 1
        names.append(_run_name(record) + (f", version {version}" if version > 1 else ""))
    return names


def _run_name(record: Record) -> str:
    instrumented = ", instrumented" if record.spec.instrumented else ""
    return f"{configuration_name(record.spec)}{instrumented}, run {record.repeat + 1}"


def series_name(row: "Row", varying: Sequence[str]) -> str:
    """The strategy, and the varying fields that tell this series from its neighbours."""
    return " ".join([row.spec.strategy, *setting_marks(row.spec, varying)])


def setting_marks(spec: RunSpec, names: Sequence[str]) -> list[str]:
    """The named fields as `name=value`, except those that are not set or have their default."""
    if not names:
        return []
    fields = flatten(spec, {name.partition(".")[0] for name in names})
    shown = [name for name in names if fields.get(name) not in (None, _DEFAULTS.get(name))]
    # A layout says what its numbers mean.
    return [fields[name] if name == "layout" else f"{name.rpartition('.')[2]}={fields[name]}" for name in shown]


def varying_within(grouped: Iterable[Sequence["Row"]]) -> list[str]:
    """Fields in which rows of the same group differ, over all groups."""
    return list(dict.fromkeys(name for rows in grouped for name in varying_fields(rows)))


def data_name(spec: RunSpec, with_copies: bool = True) -> str:
    """The data set with its copies and cut."""
    copies = f" x{spec.dataset_copies}" if spec.dataset_copies > 1 and with_copies else ""
    cut = f" (first {spec.train_samples:,})" if spec.train_samples else ""
    return f"{spec.dataset}{copies}{cut}"


def device_name(spec: RunSpec) -> str:
    """The kind of device that each worker used."""
    if spec.device == "cuda-slice":
        return f"slices of 1/{spec.slices} of a GPU"
    return "GPUs" if spec.device == "cuda" else "cores"


def setting_title(spec: RunSpec, without: Container[str] = ()) -> str:
    """The title of a group of comparable runs, from what they have in common, without the parts named in `without`."""
    batch = f"global batch {spec.global_batch}" if spec.scaling == "strong" else f"batch {spec.local_batch} per worker"
    length = f"{spec.epochs} epochs" if spec.epochs else f"{spec.steps} steps"
    place = data_name(spec, with_copies="data" not in without)
    trained = [
        f"on {place}" if "model" in without else f"{spec.workload} on {place}",
        f"{spec.scaling} scaling" if "batch" in without else f"{spec.scaling} scaling, {batch}",
        length,
    ]
    # A script has data of its own, and is as long as it is; its batch is known where the user says it.
    scripted = [spec.workload, *([batch] if spec.samples_per_step and "batch" not in without else [])]
    parts = [
        *(trained if spec.script is None else scripted),
        *([device_name(spec)] if spec.device != "cpu" else []),
        *([f"link {spec.link.text}"] if spec.link is not None and "link" not in without else []),
        *([f"machines {spec.machines}"] if spec.machines else []),
        *([spec.shrunk.text] if spec.shrunk and "shrunk" not in without else []),
    ]
    return " · ".join(parts)


def group_by_setting(rows: Sequence["Row"], without: Container[str] = ()) -> dict[str, list["Row"]]:
    """Rows by the title of their setting: each group belongs in one table or panel."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(setting_title(row.spec, without), []).append(row)
    # Fields that are the same within a group but not everywhere belong in its title.
    varying = set(varying_fields(rows)) - _WORDED_IN_TITLES
    beyond = {title: varying - set(varying_fields(members)) for title, members in grouped.items()}
    marks = {title: setting_marks(members[0].spec, sorted(beyond[title])) for title, members in grouped.items()}
    for title, members in grouped.items():
        marks[title] += [STEPS_MARK] if any(row.counts_steps for row in members) else []
    return {" · ".join([title, *marks[title]]): members for title, members in grouped.items()}


def shorten_titles(titles: Sequence[str]) -> tuple[list[str], str]:
    """Titles without the parts that all of them have, and those parts; a single title stays as it is."""
    if len(titles) < 2:
        return list(titles), ""
    parts = [_SEPARATOR.split(title) for title in titles]
    shared = set(parts[0]).intersection(*parts[1:])
    short = [", ".join(part for part in title_parts if part not in shared) or _NOTHING_MORE for title_parts in parts]
    return short, ", ".join(part for part in parts[0] if part in shared)


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


def describe_unmeasured(rows: Sequence["Row"]) -> list[tuple[str, str, str]]:
    """Name with worker counts, status and reason of rows without a result; equal reasons are given once.

    What cannot be run at all cannot over any link.
    """
    varying = varying_fields(rows)
    unlinked = [name for name in varying if name != "link"]
    worker_counts: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        if not row.measured:
            status, reason = str(row.status).replace("_", " "), row.reason or "no reason given"
            name = series_name(row, unlinked if row.status is Status.SKIPPED else varying)
            worker_counts.setdefault((name, status, reason), []).append(row.spec.workers)
    return [
        (f"{name} {', '.join(f'x{count}' for count in dict.fromkeys(counts))}", status, reason)
        for (name, status, reason), counts in worker_counts.items()
    ]


def unmeasured_in_settings(rows: Sequence["Row"], without: Container[str] = ()) -> list[tuple[str, str, str, str]]:
    """Name, status, reason and setting of what was not measured; what is equal in several settings is given once."""
    titles_of: dict[tuple[str, str, str], list[str]] = {}
    titled = group_by_setting(rows, without)
    for title, group in titled.items():
        for description in describe_unmeasured(group):
            titles_of.setdefault(description, []).append(title)
    return [
        (*description, "" if len(titled) == 1 else titles[0] if len(titles) == 1 else f"in {len(titles)} settings")
        for description, titles in titles_of.items()
    ]
