"""Catalogues: list a folder of one kind of thing, import each file, take its public object.

A new file in `strategies/`, `workloads/` or `data/` is thereby known everywhere, with no other edit.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TypeVar

from paceline.errors import SpecError, nearest

T = TypeVar("T")


def discover(
    package: str, attribute: str, kind: type[T], entry_points: str | None = None, folders: tuple[str, ...] = ()
) -> dict[str, T]:
    """Objects named `attribute` in the modules of `package` and its `folders`, and those of entry points."""
    named = [
        module for place in (package, *(f"{package}.{folder}" for folder in folders)) for module in _modules(place)
    ]
    candidates = [getattr(import_module(module), attribute, None) for module in named]
    members = [candidate for candidate in candidates if isinstance(candidate, kind)]
    if entry_points is not None:
        members += [entry.load() for entry in metadata.entry_points(group=entry_points)]
    return {name: member for member in members for name in [_name(member)]}


def _modules(package: str) -> Iterator[str]:
    return (module.name for module in pkgutil.iter_modules(import_module(package).__path__, package + "."))


def _name(member: object) -> str:
    return str(getattr(member, "name", None))


def load_named(package: str, attribute: str, kind: type[T], name: str, folders: tuple[str, ...] = ()) -> T | None:
    """The object from the file that is named after it, so that a worker imports one file instead of a folder.

    In one of `folders` the file has the name without its first word: `torch-ddp` is `torch/ddp.py`.
    """
    stem = name.replace("-", "_")
    if not stem.isidentifier():
        return None
    rest = stem.partition("_")[2]
    places = [stem, *(f"{folder}.{short}" for folder in folders for short in (rest, stem) if short)]
    for module in (f"{package}.{place}" for place in places):
        if find_spec(module) is not None:
            candidate = getattr(import_module(module), attribute, None)
            if isinstance(candidate, kind) and _name(candidate) == name:
                return candidate
    return None


def choose(name: str, choices: Mapping[str, T], what: str) -> T:
    """The named object, or a `SpecError` with the nearest known name."""
    if name not in choices:
        raise SpecError(f"there is no {what} {name!r}; {nearest(name, choices)}")
    return choices[name]
