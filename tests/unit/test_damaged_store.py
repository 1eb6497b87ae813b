"""Results files whose content is damaged: that is named and left out, the rest is shown, nothing is written."""

import random
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import DamagedRecords, StoreError, UserError
from paceline.record import Record, Status
from paceline.store import APPLICATION_ID, MIGRATIONS, Store, content, unpack

REPEATS = 6
SEEDS = 40


@pytest.fixture
def filled(path: Path, make_record: Callable[..., Record]) -> Path:
    """A file with a few records, each with its own seconds."""
    with Store.open(path) as store:
        for repeat in range(REPEATS):
            steps = {0: (0.1 + repeat, 0.25), 1: (0.5,) * 50}
            store.add(make_record(repeat=repeat, wall_seconds=10.5 + repeat, step_seconds=steps, log_tail="é" * 20))
        store.add_to_study("trial", [store.records()[0].key])
    return path


def change(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement, values)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def without_checksums(path: Path) -> None:
    """As a Paceline left it that had none."""
    for table in ("runs", "steps"):
        change(path, f"UPDATE {table} SET checksum = NULL")


DAMAGE = {
    "a changed digit": (
        "UPDATE runs SET record = replace(record, '12.5', '12.6') WHERE id = 3",
        "its checksum differs",
    ),
    "a changed repeat": ("UPDATE runs SET repeat = 77 WHERE id = 3", "its checksum differs"),
    "a changed status": ("UPDATE runs SET status = 'skipped' WHERE id = 3", "its checksum differs"),
    "no UTF-8": ("UPDATE runs SET record = CAST(x'7bff' AS TEXT) WHERE id = 3", "its checksum differs"),
}
UNCHECKED_DAMAGE = {
    "no UTF-8": ("UPDATE runs SET record = CAST(x'7bff' AS TEXT) WHERE id = 3", "its text is not UTF-8"),
    "no JSON": ("UPDATE runs SET record = '{\"study\": ' WHERE id = 3", "its text is not JSON"),
    "no record": ("UPDATE runs SET record = '[1, 2]' WHERE id = 3", "its fields are not those of a record"),
    "unknown fields": (
        "UPDATE runs SET record = replace(record, '\"study\"', '\"stu\"') WHERE id = 3",
        "its fields are not those of a record",
    ),
}


def read_with_words(path: Path, with_steps: bool = False) -> tuple[list[Record], str]:
    with pytest.warns(DamagedRecords) as caught, Store.open_existing(path) as store:
        records = store.records(with_steps=with_steps)
    return records, str(caught[0].message)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_named_and_left_out_and_the_rest_is_there(filled, name):
    statement, reason = DAMAGE[name]
    change(filled, statement)
    before = filled.read_bytes()
    records, words = read_with_words(filled)
    assert [record.id for record in records] == [1, 2, 4, 5, 6]
    assert words == (f"{filled} is damaged (record 3: {reason}); that is left out, and the file is left as it is")
    assert filled.read_bytes() == before


@pytest.mark.parametrize("name", UNCHECKED_DAMAGE)
def test_damage_of_a_record_without_a_checksum_is_found_where_it_can_be(filled, name):
    without_checksums(filled)
    statement, reason = UNCHECKED_DAMAGE[name]
    change(filled, statement)
    records, words = read_with_words(filled)
    assert [record.id for record in records] == [1, 2, 4, 5, 6]
    assert f"record 3: {reason}" in words


WRITTEN = [(True, case[0]) for case in DAMAGE.values()] + [
    (False, UNCHECKED_DAMAGE[name][0]) for name in ("no UTF-8", "no JSON")
]


@pytest.mark.parametrize(("checked", "statement"), WRITTEN)
def test_nothing_is_written_to_a_file_with_a_damaged_record(filled, checked, statement):
    if not checked:
        without_checksums(filled)
    change(filled, statement)
    before = filled.read_bytes()
    with pytest.raises(StoreError, match=r"is damaged \(record 3: .*it was left as it is: choose another with --db"):
        Store.open(filled)
    assert filled.read_bytes() == before


def test_many_damaged_records_are_counted_beyond_the_first_few(path, make_record):
    with Store.open(path) as store:
        for repeat in range(15):
            store.add(make_record(repeat=repeat))
    change(path, "UPDATE runs SET study = 'another'")
    records, words = read_with_words(path)
    assert records == []
    assert "; and 5 more)" in words


def test_a_damaged_environment_is_named_and_its_records_are_shown_without_it(filled):
    change(filled, "UPDATE environments SET fields = replace(fields, '3.12.1', '3.12.2')")
    records, words = read_with_words(filled)
    assert len(records) == REPEATS
    assert {str(record.environment) for record in records} == {"{}"}
    assert "is damaged (environment " in words


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE steps SET seconds = x'00ff' WHERE run = 3 AND rank = 0", "the checksum of its steps differs"),
        ("UPDATE steps SET rank = 5 WHERE run = 3 AND rank = 0", "the checksum of its steps differs"),
    ],
)
def test_damaged_steps_are_told_where_they_are_read(filled, statement, reason):
    change(filled, statement)
    with Store.open_existing(filled) as store:
        assert len(store.records()) == REPEATS
    records, words = read_with_words(filled, with_steps=True)
    assert len(records) == REPEATS - 1
    assert f"record 3: {reason}" in words


def test_steps_without_a_checksum_that_cannot_be_expanded_are_told(filled):
    without_checksums(filled)
    change(filled, "UPDATE steps SET seconds = x'00ff' WHERE run = 3 AND rank = 0")
    _, words = read_with_words(filled, with_steps=True)
    assert "record 3: its steps cannot be expanded" in words


def test_a_small_blob_that_would_fill_the_memory_stops_at_a_stated_limit(monkeypatch):
    monkeypatch.setattr(content, "MOST_STEP_BYTES", 1 << 20)
    assert len(unpack(zlib.compress(bytes(1 << 20)))) == (1 << 20) // 8
    with pytest.raises(content.DamagedError, match="would expand beyond 1 MiB"):
        unpack(zlib.compress(bytes((1 << 20) + 8)))


@pytest.mark.parametrize("blob", [zlib.compress(bytes(16))[:-3], zlib.compress(bytes(12)), zlib.compress(b"") + b"x"])
def test_steps_that_are_cut_short_are_told(blob):
    with pytest.raises(content.DamagedError, match="its steps are incomplete"):
        unpack(blob)


@pytest.mark.parametrize("opener", [Store.open, Store.open_existing])
def test_a_file_with_our_mark_and_no_tables_is_refused_in_words(path, opener):
    change(path, f"PRAGMA application_id = {APPLICATION_ID}")
    change(path, f"PRAGMA user_version = {len(MIGRATIONS)}")
    with pytest.raises(StoreError, match=r"is damaged \(it has no column .*left as it is"):
        opener(path)


@pytest.mark.parametrize("opener", [Store.open, Store.open_existing])
@pytest.mark.parametrize("table", ["runs", "steps", "members", "environments"])
def test_a_file_that_lacks_a_column_is_refused_in_words(filled, opener, table):
    change(filled, f"DROP TABLE {table}")
    change(filled, f"CREATE TABLE {table} (id INTEGER)")
    before = filled.read_bytes()
    with pytest.raises(StoreError, match=rf"is damaged \(it has no column .* of table {table}\)"):
        opener(filled)
    assert filled.read_bytes() == before


def test_a_file_without_checksums_is_read_and_gets_them_for_what_is_added(path, make_record):
    connection = sqlite3.connect(path)
    connection.executescript(MIGRATIONS[0])
    connection.executescript(f"PRAGMA user_version = 1; PRAGMA application_id = {APPLICATION_ID}")
    body = make_record().model_dump_json(by_alias=True, exclude=content.OUTSIDE_BODY)
    environment = '{"python": "3.12.1"}'
    digest = content.environment_digest(environment)
    connection.execute("INSERT INTO environments VALUES (?, ?)", (digest, environment))
    values = (make_record().key, 0, "trial", "ok", "2024", digest, body)
    connection.execute("INSERT INTO runs VALUES (1, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with Store.open_existing(path) as store:
        assert [record.environment for record in store.records(with_steps=True)] == [{"python": "3.12.1"}]
    assert path.read_bytes() == before
    with Store.open(path) as store:
        store.add(make_record(repeat=1))
        assert [record.repeat for record in store.records(with_steps=True)] == [0, 1]
    connection = sqlite3.connect(path)
    assert [known is None for (known,) in connection.execute("SELECT checksum FROM runs ORDER BY id")] == [True, False]
    connection.close()


def damaged_bytes(whole: bytes, seed: int) -> bytes:
    """The file with a few of its bytes changed, a piece overwritten or its end cut off."""
    chance, content_bytes = random.Random(seed), bytearray(whole)
    kind = chance.randrange(4)
    if kind == 0:
        return bytes(content_bytes[: chance.randrange(len(whole))])
    if kind == 1:
        start, length = chance.randrange(len(whole)), chance.randrange(1, 3000)
        content_bytes[start : start + length] = chance.randbytes(min(length, len(whole) - start))
        return bytes(content_bytes)
    for _ in range(chance.choice((1, 3, 30))):
        place = chance.randrange(len(whole))
        content_bytes[place] = content_bytes[place] ^ (1 << chance.randrange(8)) if kind == 2 else chance.randrange(256)
    return bytes(content_bytes)


def as_it_was_or_refused(path: Path, whole: bytes, seed: int) -> None:
    """What a damaged file shows is what was stored, or less of it with a word; never another value or a traceback."""
    damaged = damaged_bytes(whole, seed)
    path.write_bytes(damaged)
    try:
        with Store.open_existing(path) as store:
            shown = store.records(with_steps=True)
            store.done(), store.members(), store.studies()
    except UserError as error:
        assert "--db" in str(error)
    else:
        for record in shown:
            assert (record.wall_seconds, record.status) == (10.5 + record.repeat, Status.OK)
            assert record.step_seconds == {0: (0.1 + record.repeat, 0.25), 1: (0.5,) * 50}
            assert record.log_tail == "é" * 20
    assert path.read_bytes() == damaged


@pytest.mark.filterwarnings("ignore::paceline.errors.DamagedRecords")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_damaged_what_is_shown_was_stored(filled, seed):
    as_it_was_or_refused(filled, filled.read_bytes(), seed)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::paceline.errors.DamagedRecords")
@pytest.mark.parametrize("hundred", range(50))
def test_whatever_is_damaged_what_is_shown_was_stored_many_times_over(filled, hundred):
    whole = filled.read_bytes()
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        as_it_was_or_refused(filled, whole, seed)
        for name in (filled.name + "-wal", filled.name + "-shm"):
            filled.with_name(name).unlink(missing_ok=True)
