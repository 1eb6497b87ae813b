"""The tables of a results file, how it is opened, and what is refused: foreign, newer and damaged files."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

from paceline.errors import StoreError
from paceline.user_input.paths import is_file

Inspect = Callable[[sqlite3.Connection], None]

# SQLite's fields for a file's program and version: "PACE" in ASCII, and the number of migrations applied.
APPLICATION_ID = 0x50414345
BUSY_SECONDS = 60.0
# A message of SQLite that quotes a damaged file may be no text.
SQLITE_ERRORS = (sqlite3.Error, UnicodeError)
# What SQLite takes for a database that is never written to disk.
IN_MEMORY = ":memory:"

MIGRATIONS = (
    """
    CREATE TABLE environments (digest TEXT PRIMARY KEY, fields TEXT NOT NULL) STRICT;
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        study TEXT NOT NULL,
        status TEXT NOT NULL,
        started_at TEXT NOT NULL,
        environment TEXT NOT NULL REFERENCES environments (digest),
        record TEXT NOT NULL
    ) STRICT;
    CREATE INDEX runs_by_configuration ON runs (key, repeat, id);
    CREATE TABLE members (study TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (study, key)) STRICT;
    CREATE TABLE steps (
        run INTEGER NOT NULL REFERENCES runs (id),
        rank INTEGER NOT NULL,
        seconds BLOB NOT NULL,
        PRIMARY KEY (run, rank)
    ) STRICT;
    """,
    """
    ALTER TABLE runs ADD COLUMN checksum TEXT;
    ALTER TABLE steps ADD COLUMN checksum TEXT;
    CREATE TABLE claims (
        machine TEXT PRIMARY KEY,
        key TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        owner TEXT NOT NULL,
        until REAL NOT NULL
    ) STRICT;
    """,
)
# The version from which on records have checksums and runs are claimed.
CHECKED_VERSION = 2


def connect_to_write(path: Path, inspect: Inspect) -> sqlite3.Connection:
    """Opens a file for reading and writing, and creates it if needed; a foreign, damaged or newer one is not touched.

    `inspect` looks at a file with tables before anything is written, and may refuse it.
    """
    refuse_memory(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(path, inspect)
        connection = _opened(str(path))
        try:
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
    except (*SQLITE_ERRORS, OSError) as error:
        raise StoreError(f"results file {path} cannot be written: {error}; choose another with --db") from error
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Opens an existing file for reading; nothing is written to it, whatever its version."""
    refuse_memory(path)
    if not is_file(path):
        raise StoreError(
            f"there is no results file {path}; run a study first (paceline run quick) or name one with --db"
        )
    refuse_foreign(path)
    try:
        connection = _connect_read_only(path)
        try:
            connection.execute("SELECT count(*) FROM runs").fetchone()
        except BaseException:
            connection.close()
            raise
    except SQLITE_ERRORS as error:
        raise StoreError(f"results file {path} cannot be read: {error}; choose another with --db") from error
    return connection


def refuse_memory(path: Path) -> None:
    """SQLite's name for memory is no file: everything would be gone when the command ends."""
    if str(path) == IN_MEMORY:
        raise StoreError(f"results file {IN_MEMORY} would keep nothing: it is memory; choose a file with --db")


def schema_version(connection: sqlite3.Connection) -> int:
    """How many migrations the file has had."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_foreign(path: Path, inspect: Inspect | None = None) -> None:
    """Refuses what is not a sound results file of a version that is known; an empty or absent file passes."""
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        with closing(_connect_read_only(path)) as connection:
            columns = _columns(connection)
            _refuse_unsound(path, connection, columns)
            if columns and inspect is not None:
                inspect(connection)
    except SQLITE_ERRORS as error:
        raise StoreError(
            f"{path} is not a sound results file ({error}); it was left as it is: choose another with --db"
        ) from None


def _refuse_unsound(path: Path, connection: sqlite3.Connection, columns: set[str]) -> None:
    owner, version = connection.execute("PRAGMA application_id").fetchone()[0], schema_version(connection)
    sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if sound != "ok":
        raise StoreError(
            f"{path} is damaged ({sound}); it was left as it is: choose another with --db, or restore a copy"
        )
    # A file that another tool is just making has a header and nothing else yet.
    if owner != APPLICATION_ID and not (not columns and owner == 0 and version == 0):
        raise StoreError(f"{path} was made by another program; it was left as it is: choose another with --db")
    if not 0 <= version <= len(MIGRATIONS):
        raise StoreError(
            f"{path} has schema version {version} and this Paceline knows {len(MIGRATIONS)}; "
            f"it was left as it is: update Paceline, or choose another file with --db"
        )
    missing = sorted(_expected_columns(version) - columns)
    if missing:
        raise StoreError(
            f"{path} is damaged (it has no {missing[0]}); it was left as it is: choose another with --db, "
            f"or restore a copy"
        )


def _columns(connection: sqlite3.Connection) -> set[str]:
    """Every column of every table, in words."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    # Names come from the file, which may be damaged: they are passed as values.
    columns = "SELECT name FROM pragma_table_info(?)"
    return {f"column {name} of table {table}" for table in tables for (name,) in connection.execute(columns, (table,))}


@cache
def _expected_columns(version: int) -> frozenset[str]:
    with closing(sqlite3.connect(IN_MEMORY)) as connection:
        for script in MIGRATIONS[:version]:
            connection.executescript(script)
        return frozenset(_columns(connection))


def _opened(name: str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(name, uri=uri, timeout=BUSY_SECONDS, isolation_level=None)
    # What is not UTF-8 is told by the checks of the content, record by record.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Opens the file for reading, also in a read-only or full folder, where SQLite cannot create files to share it."""
    for way in ("?mode=ro", "?mode=ro&immutable=1"):
        connection = _opened(path.resolve().as_uri() + way, uri=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            refused = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise refused


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    version = schema_version(connection)
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in script.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
