"""The consoles that commands print to, and the options that several share."""

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.shell.completion import stored_study_names
from paceline.errors import UserError, nearest
from paceline.user_input.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from paceline.store import Store


@cache
def output() -> "Console":
    """The console for results: standard output."""
    return _console()


@cache
def errors() -> "Console":
    """The console for messages and progress: standard error."""
    return _console(stderr=True)


def _console(stderr: bool = False) -> "Console":
    """A console that writes what a terminal would obey as numbers: names and logs are of others."""
    from rich.console import Console

    class Careful(Console):
        def render_str(self, text: str, **how: Any) -> "Text":
            return super().render_str(printable(text, keep="\n\t"), **how)

        def on_broken_pipe(self) -> None:
            if stderr:
                _send_nowhere(sys.stderr.fileno())
            else:
                super().on_broken_pipe()

    return Careful(stderr=stderr, highlight=False, emoji=False)


class _UntilNobodyReads(io.FileIO):
    """A file descriptor that takes what is written to it also after whoever read it has gone."""

    def write(self, data: Any) -> int:
        """The number of bytes that were taken."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            _send_nowhere(self.fileno())
            return memoryview(data).nbytes
        except OSError as error:
            _send_nowhere(self.fileno())
            raise UserError(
                f"the output cannot be written: {error.strerror}; free space, or send it elsewhere"
            ) from None


class _AsLongAsItGoes(io.FileIO):
    """A file descriptor for messages, which are no longer written where they cannot be."""

    def write(self, data: Any) -> int:
        """The number of bytes that were taken."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError:
            _send_nowhere(self.fileno())
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Lets a command go on to its own exit code when its output is no longer read, as in `paceline show | head -1`."""
    for name, kind in (("stdout", _UntilNobodyReads), ("stderr", _AsLongAsItGoes)):
        before = getattr(sys, name)
        if isinstance(before, io.TextIOWrapper) and before is getattr(sys, f"__{name}__"):
            outlived = io.TextIOWrapper(
                io.BufferedWriter(kind(before.fileno(), "wb", closefd=False)), before.encoding, before.errors,
                line_buffering=before.line_buffering, write_through=before.write_through,
            )  # fmt: skip
            setattr(sys, name, outlived)


def _send_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def plain_table(first: str, *columns: str, least_width: int | None = None) -> "Table":
    """A table without lines: names in the first column, and numbers to the right under the other headings."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(first, overflow="fold", min_width=least_width)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_json(values: object) -> None:
    """Prints values for other programs to read."""
    typer.echo(json.dumps(values, indent=2, allow_nan=False))


def print_json_lists(lists: Mapping[str, Iterable[object]]) -> None:
    """Prints an object of lists as `print_json` would, one value at a time."""
    separator = "{"
    for name, values in lists.items():
        typer.echo(f"{separator}\n  {json.dumps(name)}: [", nl=False)
        mark = ""
        for value in values:
            text = json.dumps(value, indent=2, allow_nan=False).replace("\n", "\n    ")
            typer.echo(f"{mark}\n    {text}", nl=False)
            mark = ","
        typer.echo("\n  ]" if mark else "]", nl=False)
        separator = ","
    typer.echo("\n}")


def flag(name: str, about: str) -> Any:
    """An option that is switched on rather than given a value."""
    return typer.Option(name, help=about)


def refuse_unknown_study(store: "Store", study: str | None) -> None:
    """Refuses the name of a study that a results file with others has not."""
    known = store.studies() if study is not None else []
    if study is not None and known and study not in known:
        raise UserError(f"there are no runs of study {study!r} in {store.path}; {nearest(study, known)}")


AsJson = Annotated[bool, flag("--json", "As JSON.")]
Db = Annotated[Path, typer.Option("--db", help="Results file.", metavar="FILE")]
StudyName = Annotated[
    str | None,
    typer.Option("--study", help="Only runs of this study.", metavar="NAME", autocompletion=stored_study_names),
]
