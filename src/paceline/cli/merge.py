"""`paceline merge`: results files of several machines in one."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paceline.cli.terminal import output
from paceline.store import DEFAULT_PATH
from paceline.store.merging import merge_files
from paceline.units import format_count


def merge(
    files: Annotated[list[Path], typer.Argument(help="Results files; they are only read.", metavar="FILE...")],
    out: Annotated[
        Path, typer.Option("--out", help="File to add them to; it is made if it is not there.", metavar="FILE")
    ] = DEFAULT_PATH,
) -> None:
    """Adds results files of other machines to one: every record once, none hidden, each with its machine."""
    for merged in merge_files(files, out):
        known = f", {merged.known:,} there already" if merged.known else ""
        machines = f" from {', '.join(map(escape, merged.machines))}" if merged.machines else ""
        output().print(
            f"{escape(str(merged.path))}: {format_count(merged.added, 'record')} added{known}{machines}", soft_wrap=True
        )
    output().print(f"[dim]paceline show --db {escape(str(out))}[/]", soft_wrap=True)
