"""Whether configurations differ in a field, told of thousands at once."""

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any


def differs(values: Sequence[Any]) -> bool:
    """Whether any two of the values may differ; equal numbers of unlike types (1 and True) do."""
    first = values[0]
    # Mostly the very same object: records of one file share what they have in common.
    if all(map(is_, values, repeat(first))):
        return False
    if isinstance(first, dict):
        return len({*map(repr, values)}) > 1
    return values.count(first) < len(values) or len({*map(type, values)}) > 1
