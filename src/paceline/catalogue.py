"""Folders of one kind of thing: list the folder, import each file, take its one public object.

A new file in `strategies/`, `workloads/` or `data/` is thereby known everywhere, with no other edit.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TypeVar

from paceline.errors import SpecError, nearest

T = TypeVar("T")


def discover(package: str, attribute: str, kind: type[T], entry_points: str | None = None) -> dict[str, T]:
    """Objects named `attribute` in the modules of `package`, and those that other distributions announce, by name."""
    found: list[T] = []
    for module in pkgutil.iter_modules(import_module(package).__path__, package + "."):
        candidate = getattr(import_module(module.name), attribute, None)
        if isinstance(candidate, kind):
            found.append(candidate)
    if entry_points is not None:
        found += [entry.load() for entry in metadata.entry_points(group=entry_points)]
    return {str(getattr(item, "name")): item for item in found}  # noqa: B009 - the kinds share only their name


def direct(package: str, attribute: str, kind: type[T], name: str) -> T | None:
    """The object of the file that is named after it, so that a worker imports one file instead of a folder."""
    module = f"{package}.{name.replace('-', '_')}"
    if not name.replace("-", "_").isidentifier() or find_spec(module) is None:
        return None
    candidate = getattr(import_module(module), attribute, None)
    return candidate if isinstance(candidate, kind) and getattr(candidate, "name", None) == name else None


def choose(name: str, choices: Mapping[str, T], what: str) -> T:
    """The named object, or a `SpecError` with the nearest right name."""
    if name not in choices:
        raise SpecError(f"there is no {what} {name!r}; {nearest(name, choices)}")
    return choices[name]
