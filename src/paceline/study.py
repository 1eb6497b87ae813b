"""`Study`: many runs as data. Factors are lists that are crossed; fixed fields hold for every run."""

import itertools
import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from paceline.errors import SpecError, nearest
from paceline.layout import all_layouts
from paceline.spec import DEFAULT_GLOBAL_BATCH, Frozen, RunSpec
from paceline.user_input.paths import is_file, read_content
from paceline.user_input.toml import parse_toml

# Tables inside a run, whose entries may be factors of their own: [factors.knobs] bucket_mb = [1, 25].
_NESTED = ("knobs", "options", "optimizer")
# Of an entry beside a study: scales in which it is left out.
NOT_IN = "not_in"
# In place of layouts: every one whose product is a worker count of the study.
ALL_LAYOUTS = "all"
# A study beyond is a slip of the pen: its plan alone would take minutes, its runs years.
MOST_CONFIGURATIONS = 10_000
MOST_WITH_ALL_LAYOUTS = 1024


class Budget(Frozen):
    """How long runs of different batches may be: so many samples each, but at least so many steps."""

    samples: int = Field(ge=1)
    steps: int = Field(ge=1)

    def steps_of(self, batch: int) -> int:
        """The steps of a run with that global batch."""
        return max(self.steps, -(-self.samples // batch))


class Study(Frozen):
    """A named grid of runs."""

    name: str = "study"
    about: str = ""
    repeats: int = Field(default=1, ge=1)
    order_seed: int = Field(default=0, ge=0)
    fixed: dict[str, Any] = {}
    factors: dict[str, Any] = {}
    # In place of epochs and steps, where batches are compared; a run that reaches its target ends sooner.
    budget: Budget | None = None
    # Further runs, each with the fixed fields but the target, and with fields of its own; lists are factors, also in
    # tables. An entry may have a `[budget]` of its own, and name the scales that it is `not_in`.
    beside: tuple[dict[str, Any], ...] = ()
    # By name, fields that make the study smaller (`scale.py`).
    scales: dict[str, dict[str, Any]] = {}

    @classmethod
    def load(cls, name: str) -> Self:
        """A study by built-in name or by the path of a TOML file."""
        path = Path(name)
        if path.suffix == ".toml" or is_file(path):
            return cls._read(path)
        built_in = built_in_studies()
        if name not in built_in:
            raise SpecError(
                f"there is no study {name!r}: neither a built-in one ({', '.join(built_in)}) nor a TOML file; "
                f"{nearest(name, built_in)}"
            )
        return cls._read(built_in[name])

    @classmethod
    def _read(cls, path: Path) -> Self:
        try:
            values = parse_toml(read_content(path).decode())
        except OSError as error:
            raise SpecError(f"study {path} cannot be read: {error.strerror}; check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SpecError(f"study {path} is not valid TOML: {error}; mend that line") from None
        values.setdefault("name", path.stem)
        return cls.parse(values, f"study {path}")

    def with_fields(self, fields: dict[str, Any]) -> Self:
        """The study with some fields replaced; a list of several values becomes a factor."""
        fixed, factors = dict(self.fixed), dict(self.factors)
        for name, value in fields.items():
            fixed.pop(name, None)
            factors.pop(name, None)
            _drop_alternative(name, fields, fixed, factors)
            if name == "layout" and "workers" not in fields:
                fixed.pop("workers", None)
                factors.pop("workers", None)
            if isinstance(value, list) and len(value) != 1:
                factors[name] = value
            else:
                fixed[name] = value[0] if isinstance(value, list) else value
        return self.model_copy(update={"fixed": fixed, "factors": factors})

    def with_tables(self, tables: dict[str, dict[str, list[Any]]]) -> Self:
        """The study with some knobs, options or optimizer settings replaced, several values as factors."""
        fixed, factors = _copy_tables(self.fixed), _copy_tables(self.factors)
        for table, entries in tables.items():
            for name, values in entries.items():
                for fields in (fixed, factors):
                    if not isinstance(fields.get(table, {}), dict):
                        raise SpecError(
                            f"study {self.name}: {table} must be a table of settings to replace {name} in it"
                        )
                    fields.get(table, {}).pop(name, None)
                if len(values) == 1:
                    fixed.setdefault(table, {})[name] = values[0]
                else:
                    factors.setdefault(table, {})[name] = values
        return self.model_copy(update={"fixed": fixed, "factors": factors})

    def specs(self) -> list[RunSpec]:
        """Every combination of the factors, in the order written, without duplicates."""
        fixed, factors = _with_all_layouts(self.name, self.fixed, self.factors)
        axes = list(_axes(factors))
        for path, values in axes:
            if not isinstance(values, list) or not values:
                raise SpecError(
                    f"study {self.name}: factor {'.'.join(path)} must be a list of values, such as [1, 2, 4]"
                )
        if (count := math.prod(len(values) for _, values in axes)) > MOST_CONFIGURATIONS:
            raise SpecError(
                f"study {self.name}: its factors make {count:,} configurations, and a study has at most "
                f"{MOST_CONFIGURATIONS:,}; leave some values out"
            )
        specs: dict[str, RunSpec] = {}
        for combination in itertools.product(*(values for _, values in axes)):
            fields = _copy_tables(fixed)
            for (path, _), value in zip(axes, combination, strict=True):
                _set_nested(fields, path, value)
            if self.budget is not None and not {"steps", "epochs"} & set(fields):
                batch = fields.get("global_batch") or fields.get("local_batch", 0) * fields.get("workers", 1)
                fields["steps"] = self.budget.steps_of(batch or DEFAULT_GLOBAL_BATCH)
            spec = RunSpec.parse(fields, f"study {self.name}")
            specs.setdefault(spec.key(), spec)
        for entry in self.beside:
            specs |= {spec.key(): spec for spec in self._beside(entry).specs()}
        return _with_equal_slices(list(specs.values()))

    def left_out_of(self, entry: dict[str, Any]) -> list[str]:
        """The scales in which an entry beside the study is left out."""
        names = entry.get(NOT_IN, [])
        if not isinstance(names, list) or any(name not in self.scales for name in names):
            raise SpecError(
                f"study {self.name}: {NOT_IN} is {names!r}, and it lists scales of the study "
                f"({', '.join(self.scales) or 'which has none'}); write such as {NOT_IN} = {[*self.scales][:1]}"
            )
        return names

    def _beside(self, entry: dict[str, Any]) -> "Study":
        self.left_out_of(entry)
        fixed = {name: value for name, value in self.fixed.items() if not name.startswith("target_")}
        budget = entry.get("budget")
        study = Study(
            name=self.name,
            fixed=fixed,
            budget=None if budget is None else Budget.parse(budget, f"study {self.name}: budget beside it"),
        )
        fields = {name: value for name, value in entry.items() if name not in ("budget", NOT_IN)}
        tables = {name: fields.pop(name) for name in _NESTED if isinstance(fields.get(name), dict)}
        # A table takes the place of the fixed one, and so do its factors.
        study = study.with_fields({**fields, **{name: {} for name in tables}})
        return study.with_tables(
            {
                name: {inner: value if isinstance(value, list) else [value] for inner, value in table.items()}
                for name, table in tables.items()
            }
        )


def _with_all_layouts(
    study: str, fixed: dict[str, Any], factors: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields in which `layout = "all"` is a list of layouts; each of them then says how many workers there are."""
    values = factors.get("layout", [fixed.get("layout")])
    if not isinstance(values, list) or ALL_LAYOUTS not in values:
        return fixed, factors
    counts = factors.get("workers", [fixed.get("workers")])
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise SpecError(f"study {study}: layout all needs to know how many workers; give such as workers 8")
    if (most := max(counts)) > MOST_WITH_ALL_LAYOUTS:
        raise SpecError(
            f"study {study}: all layouts of {most} workers are more than can be tried; name some, "
            f"or ask for at most {MOST_WITH_ALL_LAYOUTS} workers"
        )
    every = [layout.text for count in counts for layout in all_layouts(count)]
    layouts = dict.fromkeys([*every, *(layout for layout in values if layout != ALL_LAYOUTS)])
    fixed = {name: value for name, value in fixed.items() if name not in ("layout", "workers")}
    return fixed, {**{name: value for name, value in factors.items() if name != "workers"}, "layout": list(layouts)}


def _with_equal_slices(specs: list[RunSpec]) -> list[RunSpec]:
    """Cuts the GPU for the most workers of the study where `slices` is not set, so that all runs have equal slices."""
    most = max((spec.workers for spec in specs if spec.device == "cuda-slice"), default=1)
    return [
        spec.model_copy(update={"slices": most}) if spec.device == "cuda-slice" and spec.slices is None else spec
        for spec in specs
    ]


def built_in_studies() -> dict[str, Path]:
    """The studies that ship with Paceline, by name."""
    folder = Path(str(resources.files("paceline") / "studies"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _drop_alternative(name: str, fields_set: dict[str, Any], fixed: dict[str, Any], factors: dict[str, Any]) -> None:
    for pair in (("global_batch", "local_batch"), ("epochs", "steps")):
        if name in pair:
            alternative = pair[1 - pair.index(name)]
            if alternative not in fields_set:
                fixed.pop(alternative, None)
                factors.pop(alternative, None)


def _axes(factors: dict[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    axes: list[tuple[tuple[str, ...], Any]] = []
    for name, values in factors.items():
        if name in _NESTED and isinstance(values, dict):
            axes += [((name, inner), inner_values) for inner, inner_values in values.items()]
        else:
            axes.append(((name,), values))
    return axes


def _copy_tables(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}


def _set_nested(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(fields.setdefault(part, {}), dict):
            raise SpecError(
                f"{part} is {fields[part]!r} and {'.'.join(path)} is a factor; make {part} a table of settings"
            )
        fields = fields[part]
    fields[path[-1]] = value
