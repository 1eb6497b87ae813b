"""Records in one SQLite file: each stored whole in one transaction the moment its run ends.

Several tools may write to the same file at once. Records are never changed or deleted; the newest record of a
configuration and repeat is the one that counts.
"""

import hashlib
import json
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from paceline.errors import StoreError
from paceline.record import FINAL, Record, Status
from paceline.spec import KEY_LENGTH

# SQLite's fields for a file's program and version: "PACE" in ASCII, and the number of migrations applied.
APPLICATION_ID = 0x50414345
BUSY_SECONDS = 60.0
DEFAULT_PATH = Path("paceline.db")

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
)


class Store:
    """An open results file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    def open(cls, path: Path = DEFAULT_PATH) -> Self:
        """Opens a file for reading and writing, and creates it if needed; a foreign or newer file is not touched."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(path)
            connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                _migrate(connection)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"results file {path} cannot be written: {error}; choose another with --db") from error
        return cls(path, connection)

    @classmethod
    def open_existing(cls, path: Path = DEFAULT_PATH) -> Self:
        """Opens an existing file for reading."""
        if not path.is_file():
            raise StoreError(
                f"there is no results file {path}; run a study first (paceline run quick) or name one with --db"
            )
        _refuse_foreign(path)
        try:
            connection = _connect_to_read(path)
            try:
                connection.execute("SELECT count(*) FROM runs").fetchone()
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"results file {path} cannot be read: {error}; choose another with --db") from error
        return cls(path, connection)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, record: Record) -> int:
        """Stores a record and returns its number; if the disk is full, nothing of it is stored."""
        environment = json.dumps(record.environment, sort_keys=True)
        digest = hashlib.sha256(environment.encode()).hexdigest()[:KEY_LENGTH]
        body = record.model_dump_json(by_alias=True, exclude={"id", "step_seconds", "environment"})
        try:
            with self._transaction():
                self._connection.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (digest, environment))
                number = self._connection.execute(
                    "INSERT INTO runs (key, repeat, study, status, started_at, environment, record)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (record.key, record.repeat, record.study, record.status, record.started_at, digest, body),
                ).lastrowid
                self._connection.executemany(
                    "INSERT INTO steps VALUES (?, ?, ?)",
                    [(number, rank, pack(seconds)) for rank, seconds in record.step_seconds.items()],
                )
        except sqlite3.Error as error:
            raise StoreError(
                f"the record of {record.spec.strategy} could not be stored in {self.path}: {error}; "
                f"free space or choose another file with --db, then run the study again: what was stored is kept"
            ) from error
        assert number is not None
        return number

    def done(self, only_ok: bool = False) -> set[tuple[str, int]]:
        """Configurations and repeats that have a final result; with `only_ok`, a good one."""
        statuses = (Status.OK,) if only_ok else tuple(FINAL)
        marks = ",".join("?" * len(statuses))
        rows = self._connection.execute(f"SELECT DISTINCT key, repeat FROM runs WHERE status IN ({marks})", statuses)
        return {(key, repeat) for key, repeat in rows}

    def has_skipped(self, key: str, reason: str) -> bool:
        """Whether the newest record of this configuration says that it was skipped for this reason."""
        row = self._connection.execute(
            "SELECT status, json_extract(record, '$.reason') FROM runs WHERE key = ? ORDER BY id DESC LIMIT 1", (key,)
        ).fetchone()
        return bool(row == (Status.SKIPPED, reason))

    def records(self, study: str | None = None, with_steps: bool = False) -> list[Record]:
        """The newest result of each configuration and repeat, in the order they were made.

        A run that was interrupted or skipped later does not hide a result that is there.
        """
        rows = self._connection.execute(
            """
            SELECT id, record, environment FROM runs
            WHERE id IN (
                SELECT coalesce(max(id) FILTER (WHERE status NOT IN ('skipped', 'interrupted')), max(id))
                FROM runs GROUP BY key, repeat
            )
            AND (:study IS NULL OR key IN (SELECT key FROM members WHERE study = :study)) ORDER BY id
            """,
            {"study": study},
        ).fetchall()
        environments = self._environments()
        return [self._record(number, body, environments[digest], with_steps) for number, body, digest in rows]

    def everything(self) -> Iterator[Record]:
        """Every record with its steps, in the order they were stored, also those that a newer one replaces."""
        environments = self._environments()
        for number, body, digest in self._connection.execute("SELECT id, record, environment FROM runs ORDER BY id"):
            yield self._record(number, body, environments[digest], with_steps=True)

    def add_to_study(self, study: str, keys: Iterable[str]) -> None:
        """Adds configurations to a study; a run that another study already made then belongs to both."""
        try:
            with self._transaction():
                rows = [(study, key) for key in keys]
                self._connection.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise StoreError(f"results file {self.path} cannot be written: {error}; free space or use --db") from error

    def members(self) -> dict[str, set[str]]:
        """The configurations of each study."""
        studies: dict[str, set[str]] = {}
        for study, key in self._connection.execute("SELECT study, key FROM members ORDER BY study"):
            studies.setdefault(study, set()).add(key)
        return studies

    def studies(self) -> list[str]:
        """Names of the studies in the file."""
        return [name for (name,) in self._connection.execute("SELECT DISTINCT study FROM members ORDER BY study")]

    def _environments(self) -> dict[str, dict[str, Any]]:
        return {digest: json.loads(fields) for digest, fields in self._connection.execute("SELECT * FROM environments")}

    def _record(self, number: int, body: str, environment: dict[str, Any], with_steps: bool) -> Record:
        extra: dict[str, Any] = {"id": number, "environment": environment}
        if with_steps:
            steps = self._connection.execute("SELECT rank, seconds FROM steps WHERE run = ?", (number,))
            extra["step_seconds"] = {rank: unpack(seconds) for rank, seconds in steps}
        try:
            return Record.model_validate_json(body).model_copy(update=extra)
        except ValidationError as error:
            raise StoreError(
                f"record {number} of {self.path} has fields that this Paceline does not know ({error.error_count()}); "
                f"update Paceline, or choose another file with --db"
            ) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def pack(seconds: Iterable[float]) -> bytes:
    """Step durations as compressed doubles, little-endian."""
    return zlib.compress(array("d", seconds).tobytes())


def unpack(blob: bytes) -> tuple[float, ...]:
    """The reverse of `pack`."""
    values = array("d")
    values.frombytes(zlib.decompress(blob))
    return tuple(values)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Opens the file for reading, also in a read-only or full folder, where SQLite cannot create files to share it."""
    for way in ("?mode=ro", "?mode=ro&immutable=1"):
        connection = sqlite3.connect(
            path.resolve().as_uri() + way, uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
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


def _refuse_foreign(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        connection = _connect_to_read(path)
        try:
            owner, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            sound = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} is not a sound results file ({error}); it was left as it is: choose another with --db"
        ) from None
    if sound != "ok":
        raise StoreError(
            f"{path} is damaged ({sound}); it was left as it is: choose another with --db, or restore a copy"
        )
    # A file that another tool is just making has a header and nothing else yet.
    if owner != APPLICATION_ID and not (empty and owner == 0 and version == 0):
        raise StoreError(f"{path} was made by another program; it was left as it is: choose another with --db")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} has schema version {version} and this Paceline knows {len(MIGRATIONS)}; "
            f"it was left as it is: update Paceline, or choose another file with --db"
        )


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in script.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
