"""Whether configurations differ in a field, told of thousands at once."""

from collections.abc import Hashable, Sequence
from itertools import repeat
from operator import is_
from typing import Any

from paceline.spec import RunSpec


class SameSpecs:
    """Specs of a list, equal to those of another list if they are the very same objects: to look up what was told."""

    __slots__ = ("_hash", "specs")

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        self.specs = specs
        self._hash = hash((*map(id, specs),))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SameSpecs)
            and len(self.specs) == len(other.specs)
            and all(map(is_, self.specs, other.specs))
        )


def differs(values: Sequence[Any]) -> bool:
    """Whether any two of the values may differ; equal numbers of unlike types (1 and True) do."""
    first = values[0]
    # Mostly the very same object: records of one file share what they have in common.
    if all(map(is_, values, repeat(first))):
        return False
    if isinstance(first, dict):
        return len({*map(repr, values)}) > 1
    return values.count(first) < len(values) or len({*map(type, values)}) > 1


def marks(columns: Sequence[Sequence[Any]]) -> list[tuple[Hashable, ...]]:
    """For each row of these columns a value that it shares with those rows alone that are equal to it."""
    return list(zip(*map(_column_marks, columns), strict=True))


def _column_marks(values: Sequence[Any]) -> list[Hashable]:
    # Equal numbers of unlike types are told apart here too.
    return [repr(value) if isinstance(value, dict) else (type(value), value) for value in values]
