"""The commands in workflow order, and the exit codes that errors become.

0 done · 1 some runs failed (and were recorded) · 2 the input is wrong · 130 interrupted, everything finished kept.
"""

import ast
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.shell.completion import command_to_complete
from paceline.cli.terminal import errors, outlive_readers
from paceline.errors import DamagedRecords, UserError
from paceline.runs.interrupts import hear_signals

NAME = "paceline"
EXIT_WRONG_INPUT, EXIT_INTERRUPTED = 2, 130
# Each is a function of the same name in a file of the same name.
COMMANDS = (
    "doctor", "strategies", "run", "join", "show", "explain", "compare", "timeline", "report", "export", "merge",
    "serve", "calibrate", "predict", "recommend", "script", "validate",
)  # fmt: skip
# Former names that still work and that no help text lists.
ALIASES = {"trace": "timeline"}


def build_app(command: str | None = None) -> typer.Typer:
    """The application with the wanted command loaded; of the others only the summary is read, to start fast."""
    app = typer.Typer(
        name=NAME,
        help="Tells you how to train your model in parallel: runs distribution strategies on your model and machine, "
        "fairly, and shows what pays.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Panels help where there are many options; the list of commands answers faster without them.
        rich_markup_mode="rich" if command else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in COMMANDS:
        app.command(name, short_help=summary(name))(_load(name) if name == command else _unloaded(name))
    if command in ALIASES:
        app.command(command, hidden=True)(_load(ALIASES[command]))
    return app


def _load(name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(f"paceline.cli.{name}"), name)
    return function


def _unloaded(name: str) -> Callable[[], None]:
    def command() -> None:
        raise NotImplementedError(f"{name} is not loaded")

    command.__doc__ = summary(name)
    return command


def summary(name: str) -> str:
    """What a command does: the first sentence of its function, read without importing its file."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(functions[name]) or "").split("\n\n", 1)[0]


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"paceline {version('paceline')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point."""
    hear_signals()
    outlive_readers()
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    words = [command_to_complete(), *sys.argv[1:2]]
    try:
        _refuse_what_is_no_text(sys.argv[1:])
        app = build_app(next((word for word in words if word in (*COMMANDS, *ALIASES)), None))
        # The name by which shells know what to complete, also if it is started as `python -m paceline`.
        app(prog_name=NAME)
    except UserError as error:
        _complain(str(error))
        sys.exit(EXIT_WRONG_INPUT)
    except (KeyboardInterrupt, SystemExit) as stop:
        # typer turns Ctrl-C into an exit with this code
        if isinstance(stop, SystemExit) and stop.code != EXIT_INTERRUPTED:
            raise
        errors().print("[bold]interrupted[/]; every finished run is stored, the same command goes on from there")
        sys.exit(EXIT_INTERRUPTED)


def _refuse_what_is_no_text(words: list[str]) -> None:
    """Names end up in records, which are text."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"{word!r} is not UTF-8; type it anew, or rename the file") from None


def _complain(text: str) -> None:
    from rich.markup import escape

    errors().print(f"[bold red]paceline:[/] {escape(text)}", soft_wrap=True)


def _show_warning(usual: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """What is damaged in a results file is a sentence for people; other warnings stay as they are."""
    if issubclass(category, DamagedRecords):
        _complain(str(message))
    else:
        usual(message, category, *place)
