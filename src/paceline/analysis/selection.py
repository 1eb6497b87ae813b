"""Selectors that users write to name runs: `torch-ddp`, `torch-ddp:workers=2,workload=mnist-small`."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from paceline.analysis.labels import flatten
from paceline.errors import SpecError, nearest
from paceline.spec import RunSpec
from paceline.strategies import strategies
from paceline.strategies.former import FORMER_KNOBS, FORMER_NAMES


@dataclass(frozen=True)
class Selector:
    """A strategy (or a pattern) and values of fields that a run must have."""

    strategy: str
    fields: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """The selector that a text describes; an unknown name is refused with the nearest known one."""
        name, _, conditions = text.partition(":")
        if not any(fnmatchcase(strategy, name) for strategy in (*strategies(), *FORMER_NAMES)):
            raise SpecError(f"no strategy matches {name!r}; {nearest(name, strategies())}")
        fields = {}
        for part in filter(None, conditions.split(",")):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value:
                raise SpecError(f"{part!r} in {text!r} is not FIELD=VALUE; write such as {name}:workers=2")
            knobs = {knob.name for strategy in strategies().values() for knob in strategy.knobs}
            known_fields = {*RunSpec.model_fields, *knobs, *FORMER_KNOBS}
            if key not in known_fields:
                raise SpecError(f"{text!r} names no field of a run: {key!r}; {nearest(key, known_fields)}")
            fields[key] = value
        return cls(name, fields)

    def matches(self, spec: RunSpec) -> bool:
        """Whether the run has this strategy and these values."""
        if not fnmatchcase(spec.strategy, self.strategy):
            return False
        values = _values(spec)
        return all(str(values.get(name, "")).lower() == value.lower() for name, value in self.fields.items())

    def __str__(self) -> str:
        marks = ",".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.strategy}:{marks}" if marks else self.strategy


def _values(spec: RunSpec) -> dict[str, Any]:
    """The fields of a run by name, nested ones without their prefix; knobs with the defaults of the strategy."""
    chosen = strategies().get(spec.strategy)
    former = FORMER_NAMES.get(spec.strategy)
    knobs = {**former.knobs, **spec.knobs} if former else chosen.knob_values(spec) if chosen else {}
    nested = {name.rpartition(".")[2]: value for name, value in flatten(spec).items()}
    return {**nested, **spec.model_dump(mode="json"), **knobs}
