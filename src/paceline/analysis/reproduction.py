"""Records ─► how to reproduce them: the command, and study files in TOML that describe exactly these runs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from paceline.errors import UserError
from paceline.plan import complete, expand_strategies
from paceline.record import Record
from paceline.scale import FULL, shrink
from paceline.spec import RunSpec
from paceline.study import Study, built_in_studies


@dataclass(frozen=True)
class Recipe:
    """A study file that describes runs, and the command that reproduces them."""

    name: str
    command: str
    text: str


def recipes(records: Sequence[Record]) -> list[Recipe]:
    """For each study, the fewest files that describe exactly its runs."""
    study_files: list[Recipe] = []
    of_study: dict[str, list[Record]] = {}
    for record in records:
        of_study.setdefault(record.study, []).append(record)
    for study, members in of_study.items():
        specs = {record.key: record.spec for record in members if not record.spec.instrumented}
        repeats = max((record.repeat for record in members), default=0) + 1
        flag = " --breakdown" if any(record.spec.instrumented for record in members) else ""
        grids = exact_grids(list(specs.values()))
        built_in = _built_in(study, specs)
        for number, grid in enumerate(grids, start=1):
            name = f"{_file_name(study)}{f'-{number}' if len(grids) > 1 else ''}.toml"
            repeated = f" --repeats {repeats}" if built_in else ""
            command = f"paceline run {built_in}{repeated}{flag}" if built_in else f"paceline run {name}{flag}"
            study_files.append(Recipe(name, command, as_toml(study, repeats, grid)))
    return study_files


def _file_name(study: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in study) or "study"


def _built_in(study: str, specs: dict[str, RunSpec]) -> str | None:
    """The arguments of `paceline run` that name these runs, if they are a whole built-in study at one scale."""
    if study not in built_in_studies():
        return None
    scales = {spec.shrunk.scale if spec.shrunk else FULL for spec in specs.values()}
    for scale in scales if len(scales) == 1 else ():
        full_study = Study.load(study)
        names = full_study.factors.get("strategy")
        if isinstance(names, list):
            full_study = full_study.with_fields({"strategy": expand_strategies(names)})
        try:
            same = {complete(spec).key() for spec in shrink(full_study, scale).specs()} == specs.keys()
        except UserError:
            return None
        return f"{study} --scale {scale}" if same and scale != FULL else study if same else None
    return None


Grid = tuple[dict[str, Any], dict[str, list[Any]]]


def exact_grids(specs: Sequence[RunSpec]) -> list[Grid]:
    """Grids (fixed fields and factors) whose combinations together are exactly these runs."""
    fields = [_fields(spec) for spec in specs]
    return _grids(fields) if fields else []


def _grids(fields: list[dict[str, Any]]) -> list[Grid]:
    levels = {name: _distinct(field_values[name] for field_values in fields) for name in fields[0]}
    varying = {name: values for name, values in levels.items() if len(values) > 1}
    absent = [name for name, values in varying.items() if None in values]
    if prod(map(len, varying.values())) == len(fields) and not absent:
        fixed = {name: values[0] for name, values in levels.items() if len(values) == 1}
        return [({name: value for name, value in fixed.items() if value != _DEFAULTS.get(name)}, varying)]
    # Split where the parts come out simplest: where a field is absent in some, else by the fewest levels.
    by = absent[0] if absent else min(varying, key=lambda name: (len(varying[name]), name != "strategy"))
    parts: dict[str, list[dict[str, Any]]] = {}
    for field_values in fields:
        parts.setdefault(_text(field_values[by]), []).append(field_values)
    return [grid for part in parts.values() for grid in _grids(part)]


_DEFAULTS = {
    name: value for name, value in RunSpec(global_batch=1, epochs=1).model_dump(mode="json").items()
    if name not in ("global_batch", "epochs")
}  # fmt: skip


def _fields(spec: RunSpec) -> dict[str, Any]:
    # A study does not say what is instrumented.
    fields = spec.model_dump(mode="json", exclude={"instrumented"})
    # The label of a user's model is made from its file, and a study names the file.
    return {**fields, "workload": _DEFAULTS["workload"]} if spec.model is not None else fields


def _distinct(values: Iterable[Any]) -> list[Any]:
    by_text: dict[str, Any] = {}
    for value in values:
        by_text.setdefault(_text(value), value)
    return list(by_text.values())


def _text(value: Any) -> str:
    """A text that only equal values have: some cannot be looked up by themselves."""
    return json.dumps(value, sort_keys=True)


def as_toml(study: str, repeats: int, grid: Grid) -> str:
    """A study file."""
    fixed, factors = grid
    lines = [f"name = {_toml(study)}", f"repeats = {repeats}", "", "[fixed]"]
    lines += [f"{name} = {_toml(value)}" for name, value in fixed.items() if value is not None]
    lines += ["", "[factors]", *(f"{name} = {_toml(values)}" for name, values in factors.items())] if factors else []
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{name} = {_toml(item)}" for name, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # What JSON writes of strings, numbers and truth values is TOML too.
    return json.dumps(value, ensure_ascii=False)
