"""Naming some of the runs in a few words: `torch-ddp`, `torch-ddp:workers=2,workload=mnist-small`."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from paceline.analysis.labels import flatten
from paceline.errors import SpecError, nearest
from paceline.spec import RunSpec
from paceline.strategies import strategies


@dataclass(frozen=True)
class Selector:
    """A strategy (or a pattern) and values of fields that a run must have."""

    strategy: str
    fields: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """From the words of a user; a name that cannot be meant is refused with the nearest right one."""
        name, _, rest = text.partition(":")
        if not any(fnmatchcase(known, name) for known in strategies()):
            raise SpecError(f"no strategy matches {name!r}; {nearest(name, strategies())}")
        fields = {}
        for part in filter(None, rest.split(",")):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value:
                raise SpecError(f"{part!r} in {text!r} is not FIELD=VALUE; write such as {name}:workers=2")
            known_fields = {*RunSpec.model_fields, *(knob.name for one in strategies().values() for knob in one.knobs)}
            if key not in known_fields:
                raise SpecError(f"{text!r} names no field of a run: {key!r}; {nearest(key, known_fields)}")
            fields[key] = value
        return cls(name, fields)

    def takes(self, spec: RunSpec) -> bool:
        """Whether the run is one of those meant."""
        if not fnmatchcase(spec.strategy, self.strategy):
            return False
        known = _values(spec)
        return all(str(known.get(name, "")).lower() == wanted.lower() for name, wanted in self.fields.items())

    def __str__(self) -> str:
        marks = ",".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.strategy}:{marks}" if marks else self.strategy


def _values(spec: RunSpec) -> dict[str, Any]:
    """Fields by their plain names; knobs with their defaults, as the strategy runs with them."""
    chosen = strategies().get(spec.strategy)
    knobs = chosen.knob_values(spec) if chosen else {}
    nested = {name.rpartition(".")[2]: value for name, value in flatten(spec).items()}
    return {**nested, **spec.model_dump(mode="json"), **knobs}
