"""An open results file: what is added to it, what is read from it, and what of it is damaged."""

import json
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from paceline.errors import DamagedRecords, StoreError
from paceline.record import FINAL, Record, Status
from paceline.store import claims
from paceline.store.claims import Owner
from paceline.store.content import (
    OUTSIDE_BODY,
    DamagedError,
    UnknownFieldsError,
    check_body,
    checksum,
    environment_digest,
    pack,
    read_body,
    read_environment,
    unpack,
)  # fmt: skip
from paceline.store.rescue import FileIdentity, rescue
from paceline.store.schema import CHECKED_VERSION, SQLITE_ERRORS, connect_to_read, connect_to_write, schema_version

DEFAULT_PATH = Path("paceline.db")
# Damaged records that are named one by one.
MOST_NAMED = 10
# The columns of a record that its checksum covers.
_COLUMNS = "key, repeat, study, status, started_at, environment"


class Store:
    """An open results file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection
        self._identity = FileIdentity.of(path)
        self._has_checksums = schema_version(connection) >= CHECKED_VERSION

    @classmethod
    def open(cls, path: Path = DEFAULT_PATH) -> Self:
        """Opens a file for reading and writing, and creates it if needed; a foreign or damaged one is not touched."""
        return cls(path, connect_to_write(path, lambda connection: cls(path, connection)._refuse_damaged()))

    @classmethod
    def open_existing(cls, path: Path = DEFAULT_PATH) -> Self:
        """Opens an existing file for reading."""
        return cls(path, connect_to_read(path))

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
        digest = environment_digest(environment)
        body = record.model_dump_json(by_alias=True, exclude=OUTSIDE_BODY)
        columns = (record.key, record.repeat, record.study, str(record.status), record.started_at, digest)
        try:
            with self._transaction():
                self._connection.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (digest, environment))
                number = self._connection.execute(
                    f"INSERT INTO runs ({_COLUMNS}, record, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*columns, body, checksum(*columns, body)),
                ).lastrowid
                steps = [(number, rank, pack(seconds)) for rank, seconds in record.step_seconds.items()]
                self._connection.executemany(
                    "INSERT INTO steps VALUES (?, ?, ?, ?)", [(*step, checksum(*step)) for step in steps]
                )
        except SQLITE_ERRORS as error:
            raise StoreError(
                f"the record of {record.spec.strategy} could not be stored in {self.path}: {error}; "
                f"free space or choose another file with --db, then run the study again: what was stored is kept"
            ) from error
        assert number is not None
        self.check_in_place()
        return number

    def check_in_place(self) -> None:
        """Raises if the file was deleted or replaced meanwhile, after saving all that it had."""
        if self._identity != FileIdentity.of(self.path):
            raise StoreError(rescue(self._connection, self.path))

    def done(self, only_ok: bool = False) -> set[tuple[str, int]]:
        """Configurations and repeats that have a final result; with `only_ok`, a good one."""
        statuses = (Status.OK,) if only_ok else tuple(FINAL)
        marks = ",".join("?" * len(statuses))
        query = f"SELECT DISTINCT key, repeat FROM runs WHERE status IN ({marks})"
        return {(key, repeat) for key, repeat in self._rows(query, statuses)}

    def newest(self) -> int:
        """The number of the newest record; 0 where there is none."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM runs")[0][0])

    def is_done_since(self, number: int, key: str, repeat: int) -> bool:
        """Whether a record newer than that number is a result of this run."""
        marks = ",".join("?" * len(FINAL))
        query = f"SELECT 1 FROM runs WHERE key = ? AND repeat = ? AND id > ? AND status IN ({marks}) LIMIT 1"
        return bool(self._rows(query, (key, repeat, number, *FINAL)))

    def claim(self, key: str, repeat: int, limit_seconds: float) -> Owner:
        """Claims a run for this process (`is_here` of the owner), or returns who has to be waited for."""
        with self._writing(), self._transaction():
            return claims.claim(self._connection, key, repeat, limit_seconds)

    def release(self, owner: Owner) -> None:
        """Ends a claim of this process."""
        with suppress(*SQLITE_ERRORS), self._transaction():
            claims.release(self._connection, owner)

    def has_skipped(self, key: str, reason: str) -> bool:
        """Whether the newest record of this configuration says that it was skipped for this reason."""
        rows = self._rows(
            "SELECT status, json_extract(record, '$.reason') FROM runs WHERE key = ? ORDER BY id DESC LIMIT 1", (key,)
        )
        return bool(rows == [(Status.SKIPPED, reason)])

    def numbers(self, study: str | None = None) -> list[tuple[int, str]]:
        """Number and configuration of the newest result of each configuration and repeat, the oldest first.

        A run that was interrupted or skipped later does not hide a result that is there.
        """
        return self._rows(
            """
            SELECT coalesce(max(id) FILTER (WHERE status NOT IN ('skipped', 'interrupted')), max(id)) AS number, key
            FROM runs WHERE :study IS NULL OR key IN (SELECT key FROM members WHERE study = :study)
            GROUP BY key, repeat ORDER BY number
            """,
            {"study": study},
        )

    def records(self, study: str | None = None, with_steps: bool = False) -> list[Record]:
        """The newest result of each configuration and repeat, in the order they were made."""
        return list(self.read((number for number, _ in self.numbers(study)), with_steps))

    def configurations(self, study: str | None = None, keys: Iterable[str] | None = None) -> Iterator[list[Record]]:
        """The same records, those of one configuration at a time, so that they need not all be in memory."""
        wanted = None if keys is None else frozenset(keys)
        numbers: dict[str, list[int]] = {}
        for number, key in self.numbers(study):
            if wanted is None or key in wanted:
                numbers.setdefault(key, []).append(number)
        places = {number: place for place, group in enumerate(numbers.values()) for number in group}
        stream = self.read(number for group in numbers.values() for number in group)
        for _, group in groupby(stream, key=lambda record: places[record.id or 0]):
            yield list(group)

    def read(self, numbers: Iterable[int], with_steps: bool = False) -> Iterator[Record]:
        """The records with these numbers; what is damaged is left out and named in a warning."""
        damage: dict[str, str] = {}
        environments = self._environments(damage)
        for number in numbers:
            try:
                yield self._record(number, environments, with_steps)
            except (DamagedError, UnknownFieldsError) as error:
                damage[f"record {number}"] = str(error)
        self._warn(damage)

    def everything(self) -> Iterator[Record]:
        """Every record with its steps, in the order they were stored, also those that a newer one replaces."""
        return self.read((number for (number,) in self._rows("SELECT id FROM runs ORDER BY id")), with_steps=True)

    def add_to_study(self, study: str, keys: Iterable[str]) -> None:
        """Adds configurations to a study; a run that another study already made then belongs to both."""
        with self._writing(), self._transaction():
            rows = [(study, key) for key in keys]
            self._connection.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", rows)

    def members(self) -> dict[str, set[str]]:
        """The configurations of each study."""
        studies: dict[str, set[str]] = {}
        for study, key in self._rows("SELECT study, key FROM members ORDER BY study"):
            studies.setdefault(study, set()).add(key)
        return studies

    def studies(self) -> list[str]:
        """Names of the studies in the file."""
        return [name for (name,) in self._rows("SELECT DISTINCT study FROM members ORDER BY study")]

    def _refuse_damaged(self) -> None:
        """Raises if any record is damaged: nothing is written to such a file."""
        damage: dict[str, str] = {}
        self._environments(damage)
        for (number,) in self._rows("SELECT id FROM runs ORDER BY id"):
            try:
                body, checked, _ = self._checked_body(number)
                if not checked:
                    read_body(body)
            except DamagedError as error:
                damage[f"record {number}"] = str(error)
            except UnknownFieldsError:
                continue
        if damage:
            raise StoreError(
                f"{self.path} is damaged ({_list_damage(damage)}); it was left as it is: choose another with --db, "
                f"or restore a copy (paceline show has what is sound)"
            )

    def _environments(self, damage: dict[str, str]) -> dict[str, dict[str, Any]]:
        environments: dict[str, dict[str, Any]] = {}
        for digest, fields in self._rows("SELECT digest, fields FROM environments"):
            try:
                environments[digest] = read_environment(digest, fields)
            except DamagedError as error:
                damage[f"environment {digest}"] = str(error)
        return environments

    def _checked_body(self, number: int) -> tuple[bytes, bool, str]:
        """The text of a record as it was written, whether a checksum says so, and the digest of its environment."""
        written = "checksum" if self._has_checksums else "NULL"
        query = f"SELECT {_COLUMNS}, CAST(record AS BLOB), {written} FROM runs WHERE id = ?"
        try:
            row = self._connection.execute(query, (number,)).fetchone()
        except SQLITE_ERRORS as error:
            raise DamagedError(f"it cannot be read: {error}") from None
        if row is None:
            raise DamagedError("it is no longer there")
        *columns, body, written_checksum = row
        check_body(body, tuple(columns), written_checksum)
        return body, written_checksum is not None, str(columns[-1])

    def _record(self, number: int, environments: dict[str, dict[str, Any]], with_steps: bool) -> Record:
        body, _, digest = self._checked_body(number)
        record = read_body(body)
        # A record is a value to all others; it is put together only here.
        record.__dict__.update(id=number, environment=environments.get(digest, {}))
        if with_steps:
            record.__dict__["step_seconds"] = self._steps(number)
        return record

    def _steps(self, number: int) -> dict[int, tuple[float, ...]]:
        written = "checksum" if self._has_checksums else "NULL"
        steps: dict[int, tuple[float, ...]] = {}
        for rank, blob, written_checksum in self._rows(
            f"SELECT rank, seconds, {written} FROM steps WHERE run = ?", (number,)
        ):
            if written_checksum is not None and checksum(number, rank, blob) != written_checksum:
                raise DamagedError("the checksum of its steps differs")
            steps[rank] = unpack(blob)
        return steps

    def _rows(self, query: str, values: Sequence[object] | dict[str, object] = ()) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except SQLITE_ERRORS as error:
            raise StoreError(f"results file {self.path} cannot be read: {error}; choose another with --db") from error

    def _warn(self, damage: dict[str, str]) -> None:
        if damage:
            text = f"{self.path} is damaged ({_list_damage(damage)}); that is left out, and the file is left as it is"
            warnings.warn(DamagedRecords(text), stacklevel=3)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            raise StoreError(f"results file {self.path} cannot be written: {error}; free space or use --db") from error

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


def _list_damage(damage: dict[str, str]) -> str:
    named = [f"{name}: {reason}" for name, reason in list(damage.items())[:MOST_NAMED]]
    more = len(damage) - len(named)
    return "; ".join([*named, *([f"and {more} more"] if more else [])])
