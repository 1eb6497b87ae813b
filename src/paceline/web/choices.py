"""Values that are known beforehand, for the fields of forms: names to choose from, and lines to put together."""

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from paceline.layout import all_layouts
from paceline.scale import FULL
from paceline.spec import Optimizer, RunSpec
from paceline.strategies import strategies
from paceline.study import Study, built_in_studies
from paceline.systems.files import networks

# Worker counts whose layouts are listed; a machine of eight devices is the largest that most have.
LAYOUT_WORKERS = (2, 4, 8)


@cache
def known_values(name: str) -> tuple[str, ...]:
    """All values that an option of this name can have; none where they cannot be counted."""
    if name == "offload":
        return ("true", "false")
    if name == "network":
        return tuple(networks())
    if name == "scale":
        scales = [scale for study in built_in_studies() for scale in Study.load(study).scales]
        return (*dict.fromkeys(scales), FULL)
    field = RunSpec.model_fields.get(name)
    return tuple(_words(field.annotation)) if field is not None else ()


def _words(annotation: Any) -> Iterable[str]:
    """The values of a literal type, also where it may be absent."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    if get_origin(annotation) in (Union, UnionType):
        return [word for part in get_args(annotation) for word in _words(part)]
    return []


@cache
def known_lines(name: str) -> dict[str, list[tuple[str, str]]]:
    """Lines that an option of several may have, with what each means, by the group that they are listed in."""
    if name == "knob":
        return {
            strategy.name: [(f"{knob.name}={_text(value)}", knob.about) for knob in strategy.knobs
                            for value in knob.choices or (knob.default,)]
            for strategy in strategies().values() if strategy.knobs
        }  # fmt: skip
    if name == "layout":
        whole = {"any count": [("all", "every layout of the worker counts")]}
        return whole | {
            f"{count} workers": [(layout.text, "") for layout in all_layouts(count)] for count in LAYOUT_WORKERS
        }
    if name == "optimizer":
        names = _words(Optimizer.model_fields["name"].annotation)
        return {"optimizer": [(f"name={value}", "") for value in names]}
    return {}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
