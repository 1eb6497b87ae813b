"""A results file that is deleted or replaced while it is in use: noticed, and saved from what is still open."""

import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self

from paceline.units import format_count


class FileIdentity(NamedTuple):
    """Which file a path leads to; another one if the file is made anew."""

    device: int
    number: int

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The identity of a file; None where there is none."""
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_dev, status.st_ino)


def rescue(connection: sqlite3.Connection, path: Path) -> str:
    """Writes all that an open connection still has to the path anew, or beside what is there now; says so in words.

    SQLite keeps a file open that has no name any more, so that nothing of it is lost while the connection is.
    """
    replaced = path.exists()
    target = _free_path(path) if replaced else path
    what = "replaced by another file" if replaced else "deleted or moved away"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(target)) as anew:
            connection.backup(anew)
            records = anew.execute("SELECT count(*) FROM runs").fetchone()[0]
    except (sqlite3.Error, OSError) as error:
        return (
            f"results file {path} was {what} in the middle of the study, and what it had could not be saved to "
            f"{target}: {error}; choose another with --db and run the study again"
        )
    advice = "run the study again to go on" if target == path else f"use it with --db {target}"
    return (
        f"results file {path} was {what} in the middle of the study, which was stopped; "
        f"all {format_count(records, 'record')} of it were saved in {target}: {advice}"
    )


def _free_path(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-rescued{number or ''}{path.suffix}") for number in count())
    return next(candidate for candidate in names if not candidate.exists())
