"""What shells offer when Tab is pressed: names of strategies, workloads, data sets, systems and studies.

Each function imports what it lists when it is called, and none of them a framework.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args, get_origin

from paceline.errors import UserError

# By which of these a shell hands over the words so far: bash, and the others by typer's own variable.
_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
COMPLETE = "_PACELINE_COMPLETE"


def command_to_complete() -> str | None:
    """The command whose options a shell asks about; None if this is no such question, or it is about commands."""
    if COMPLETE not in os.environ:
        return None
    text = next((os.environ[name] for name in _WORDS if name in os.environ), "")
    return next(iter(text.split()[1:2]), None)


def strategy_names(incomplete: str) -> list[str]:
    """Strategies; the last of several behind commas."""
    from paceline.strategies import strategies

    return _after_commas(incomplete, strategies())


def strategies_with_fields(incomplete: str) -> list[str]:
    """Strategies, for what may have fields behind a colon."""
    return [] if ":" in incomplete else strategy_names(incomplete)


def workload_names(incomplete: str) -> list[str]:
    """Built-in models."""
    from paceline.workloads import workloads

    return _after_commas(incomplete, workloads())


def dataset_names(incomplete: str) -> list[str]:
    """Data sets."""
    from paceline.data import data_sources

    return _after_commas(incomplete, data_sources())


def system_names(incomplete: str) -> list[str]:
    """Systems that come with Paceline, and system files of the folder; `8x` in front stays."""
    from paceline.systems.files import shipped_systems

    count, times, name = incomplete.partition("x")
    several = f"{count}x" if times and count.isdigit() else ""
    files = [] if several else sorted(path.name for path in Path().glob("*.toml"))
    return [several + known for known in _beginning(name if several else incomplete, (*shipped_systems(), *files))]


def network_names(incomplete: str) -> list[str]:
    """Networks between nodes."""
    from paceline.systems.files import networks

    return _beginning(incomplete, networks())


def study_names(incomplete: str) -> list[str]:
    """Built-in studies, and files of the folder that may be studies or scripts."""
    from paceline.study import built_in_studies

    files = (path.name for kind in ("*.toml", "*.py") for path in sorted(Path().glob(kind)))
    return _beginning(incomplete, (*built_in_studies(), *files))


def stored_study_names(incomplete: str) -> list[str]:
    """Studies of the results file of the folder."""
    from paceline.store import Store

    try:
        with Store.open_existing() as store:
            return _beginning(incomplete, store.studies())
    except UserError:
        return []


def objective_names(incomplete: str) -> list[str]:
    """What may be best."""
    from paceline.recommend.objectives import OBJECTIVES

    return _beginning(incomplete, OBJECTIVES)


def exporter_names(incomplete: str) -> list[str]:
    """Kinds of export."""
    from paceline.export import exporters

    return _beginning(incomplete, exporters())


def progress_forms(incomplete: str) -> list[str]:
    """How progress is shown."""
    return _beginning(incomplete, ("bar", "json"))


def values_of(field: str) -> Callable[[str], list[str]]:
    """What offers the words that a field of a run may be; the last of several behind commas."""

    def offer(incomplete: str) -> list[str]:
        from paceline.spec import RunSpec

        return _after_commas(incomplete, _words(RunSpec.model_fields[field].annotation))

    return offer


def _words(annotation: object) -> list[str]:
    """The words of a literal type, also where it may be absent."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _after_commas(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in before.split(",")]
