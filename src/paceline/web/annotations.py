"""Tags and notes that people give configurations, in tables of their own in the results file; records stay as they are.

A file without these tables has none. They are made when somebody writes the first tag or note, by any version: the
number of the schema counts what records need, and does not change.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import StoreError, UserError
from paceline.store import Store
from paceline.store.schema import BUSY_SECONDS
from paceline.user_input.printable import printable

TABLES = (
    "CREATE TABLE IF NOT EXISTS tags (key TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (key, tag)) STRICT",
    "CREATE TABLE IF NOT EXISTS notes (key TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL) STRICT",
)
# A tag is a word in a table, a note a few paragraphs.
LONGEST_TAG, LONGEST_NOTE, MOST_TAGS = 40, 10_000, 20


@dataclass(frozen=True)
class Annotation:
    """What people say of one configuration."""

    tags: tuple[str, ...] = ()
    note: str = ""


NOTHING_SAID = Annotation()


def read_annotations(path: Path) -> Mapping[str, Annotation]:
    """The annotations of a results file by the key of their configuration."""
    annotations: dict[str, Annotation] = {}
    address = path.resolve().as_uri() + "?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        for key, tag in _rows(connection, "SELECT key, tag FROM tags ORDER BY tag"):
            known = annotations.get(key, NOTHING_SAID)
            annotations[key] = replace(known, tags=(*known.tags, tag))
        for key, text in _rows(connection, "SELECT key, text FROM notes"):
            annotations[key] = replace(annotations.get(key, NOTHING_SAID), note=text)
    return annotations


def _rows(connection: sqlite3.Connection, query: str) -> list[tuple[str, str]]:
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError:  # nobody has said anything yet
        return []


def add_tag(path: Path, keys: Iterable[str], tag: str) -> None:
    """Gives every configuration the tag."""
    tag = checked_tag(tag)
    with _writing(path) as connection:
        for key in keys:
            connection.execute("INSERT OR IGNORE INTO tags VALUES (?, ?)", (key, tag))
            (count,) = connection.execute("SELECT count(*) FROM tags WHERE key = ?", (key,)).fetchone()
            if count > MOST_TAGS:
                raise UserError(f"a configuration has {MOST_TAGS} tags already; take one off before {tag!r} is added")


def remove_tag(path: Path, keys: Iterable[str], tag: str) -> None:
    """Takes the tag off every configuration."""
    with _writing(path) as connection:
        connection.executemany("DELETE FROM tags WHERE key = ? AND tag = ?", [(key, tag) for key in keys])


def set_note(path: Path, key: str, text: str) -> None:
    """Puts the note in the place of the one before; an empty one removes it."""
    text = printable(text.replace("\r\n", "\n").strip(), keep="\n\t")
    if len(text) > LONGEST_NOTE:
        raise UserError(f"the note has {len(text):,} characters; write at most {LONGEST_NOTE:,}")
    with _writing(path) as connection:
        connection.execute("DELETE FROM notes WHERE key = ?", (key,))
        if text:
            connection.execute("INSERT INTO notes VALUES (?, ?)", (key, text))


def checked_tag(tag: str) -> str:
    """The tag without spaces around it; what cannot be one is refused."""
    tag = " ".join(tag.split())
    if not tag:
        raise UserError("a tag has no letters; write a word, such as good")
    if len(tag) > LONGEST_TAG or printable(tag) != tag:
        raise UserError(f"{printable(tag[:LONGEST_TAG])!r} cannot be a tag; write at most {LONGEST_TAG} letters")
    return tag


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A transaction on a results file that is sound; all of it is written or nothing."""
    Store.open_existing(path).close()
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for table in TABLES:
                    connection.execute(table)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
    except sqlite3.Error as error:
        raise StoreError(f"tags and notes cannot be written to {path}: {error}; see who may write there") from error
