"""The consoles that commands print to, and the options that several share."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


@cache
def output() -> "Console":
    """The console for results: standard output."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def errors() -> "Console":
    """The console for messages and progress: standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


Db = Annotated[Path, typer.Option("--db", help="Results file.", metavar="FILE")]
StudyName = Annotated[str | None, typer.Option("--study", help="Only runs of this study.", metavar="NAME")]
