"""The results file in trouble: writers at once, writers that die, files that are not ours, a full disk."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import StoreError
from paceline.store import APPLICATION_ID, MIGRATIONS, Store

EVERYONE = 50
# Adds copies of a record, each under its own repeat, and says so after each; starts when it is told to.
WRITER = """
import sys
from pathlib import Path
from paceline.record import Record
from paceline.store import Store
path, record, first, count = sys.argv[1:]
record = Record.model_validate_json(record)
with Store.open(Path(path)) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for repeat in range(int(first), int(first) + int(count)):
        store.add(record.model_copy(update={"repeat": repeat}))
        print(repeat, flush=True)
"""


@pytest.fixture
def writer(path, child_environment):
    """A process that is about to add records to the file."""
    started = []

    def start(record, first, count):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), record.model_dump_json(), str(first), str(count)],
            env=child_environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def complaint(function, *arguments):
    with pytest.raises(StoreError) as caught:
        function(*arguments)
    return str(caught.value)


def tell(process):
    """Lets a writer begin."""
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_that_write_at_once_both_succeed(path, store, writer, make_record):
    record = make_record(step_seconds={0: (0.1,) * 200})
    first, second = writer(record, 0, EVERYONE), writer(record, EVERYONE, EVERYONE)
    tell(first)
    tell(second)
    for process in (first, second):
        process.communicate()
        assert process.returncode == 0
    records = store.records(with_steps=True)
    assert sorted(each.repeat for each in records) == list(range(2 * EVERYONE))
    assert all(each.step_seconds == record.step_seconds for each in records)


def test_a_reader_sees_each_record_as_soon_as_it_is_stored(path, store, make_record):
    with Store.open_existing(path) as reader:
        assert reader.records() == []
        store.add(make_record())
        assert len(reader.records()) == 1


def test_a_writer_that_is_killed_loses_no_record_it_had_stored(path, writer, make_record):
    process = writer(make_record(step_seconds={0: (0.1,) * 200}), 0, 100_000)
    tell(process)
    stored = [int(process.stdout.readline()) for _ in range(20)]
    process.kill()
    stored += [int(line) for line in process.stdout.read().split()]
    process.wait()
    with Store.open(path) as store:
        found = [record.repeat for record in store.records()]
        assert found == list(range(len(found)))
        assert set(stored) <= set(found)
        assert all(record.step_seconds for record in store.records(with_steps=True))
        store.add(make_record(repeat=999_999))


def test_a_file_that_another_process_is_just_making_is_not_refused(path, make_record):
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    try:
        with Store.open(path) as store:
            store.add(make_record())
    finally:
        other.close()


def test_an_empty_file_is_taken_as_a_new_one(path, make_record):
    path.touch()
    with Store.open(path) as store:
        store.add(make_record())
        assert len(store.records()) == 1


@pytest.fixture
def filled(path, make_record):
    """The bytes of a file with enough records to span many pages."""
    with Store.open(path) as store:
        for repeat in range(20):
            store.add(make_record(repeat=repeat, log_tail="x" * 3000))
    return path.read_bytes()


def refused_and_left_alone(path, opener):
    before = path.read_bytes()
    words = complaint(opener, path)
    assert path.read_bytes() == before
    assert words.startswith(str(path))
    assert "it was left as it is" in words
    assert "--db" in words
    return words


OPENERS = pytest.mark.parametrize("opener", [Store.open, Store.open_existing], ids=["to write", "to read"])


@OPENERS
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:5000] + b"\xff" * 30_000 + whole[35_000:],
        lambda whole: b"garbage" * 1000,
        lambda whole: whole[:10],
    ],
    ids=["cut in half", "overwritten inside", "no database", "ten bytes"],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(path, filled, opener, damage):
    path.write_bytes(damage(filled))
    words = refused_and_left_alone(path, opener)
    assert "is damaged" in words or "is not a sound results file" in words


@OPENERS
def test_a_database_of_another_program_is_refused_and_left_as_it_is(path, opener):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (name TEXT)")
    connection.commit()
    connection.close()
    assert "was made by another program" in refused_and_left_alone(path, opener)


@OPENERS
def test_a_file_of_a_newer_paceline_is_refused_with_both_versions_and_left_as_it_is(path, filled, opener):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    words = refused_and_left_alone(path, opener)
    assert f"has schema version 99 and this Paceline knows {len(MIGRATIONS)}" in words
    assert "update Paceline" in words


def test_a_file_of_ours_says_who_made_it_and_in_which_version(path, filled):
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()


def test_a_folder_is_no_results_file(tmp_path):
    assert "--db" in complaint(Store.open, tmp_path)


def test_a_place_that_cannot_be_written_is_refused_with_the_reason_and_what_to_do():
    words = complaint(Store.open, Path("/proc/x.db"))
    assert words.startswith("results file /proc/x.db cannot be written: ")
    assert "unable to open database file" in words
    assert words.endswith("choose another with --db")


def test_a_file_where_a_folder_should_be_is_refused_the_same_way(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "results.db"
    words = complaint(Store.open, path)
    assert words.startswith(f"results file {path} cannot be written: ")
    assert words.endswith("choose another with --db")


def test_reading_results_that_are_not_there_says_how_to_make_some(path):
    assert complaint(Store.open_existing, path) == (
        f"there is no results file {path}; run a study first (paceline run quick) or name one with --db"
    )
    assert not path.exists()


def test_reading_a_file_without_results_is_refused(path):
    path.touch()
    words = complaint(Store.open_existing, path)
    assert words.startswith(f"results file {path} cannot be read: ")
    assert "--db" in words


def test_reading_changes_nothing(path, filled):
    with Store.open_existing(path) as store:
        assert len(store.records()) == 20
    assert path.read_bytes() == filled


@pytest.mark.parametrize("name", ["run#1.db", "what?.db", "50%41.db"])
def test_any_file_name_will_do(tmp_path, make_record, name):
    for repeat in range(2):
        with Store.open(tmp_path / name) as store:
            store.add(make_record(repeat=repeat))
    with Store.open_existing(tmp_path / name) as store:
        assert len(store.records()) == 2


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Takes what space is left, to the last byte."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 512):
                pass
        except OSError:
            return


def test_a_record_that_finds_the_disk_full_is_refused_whole_and_those_before_are_kept(small_disk, make_record):
    path = small_disk / "results.db"
    with Store.open(path) as store:
        store.add(make_record())
        fill(small_disk)
        large = make_record(repeat=1, log_tail="x" * 8000, step_seconds={0: tuple(map(float, range(1000)))})
        words = complaint(store.add, large)
        assert words.startswith(f"the record of fake could not be stored in {path}: database or disk is full; ")
        assert "free space or choose another file with --db, then run the study again" in words
        assert "what was stored is kept" in words
        assert [record.repeat for record in store.records(with_steps=True)] == [0]
        (small_disk / "filler").unlink()
        store.add(large)
        assert [record.repeat for record in store.records()] == [0, 1]
    with Store.open_existing(path) as store:
        assert store.records(with_steps=True)[1].step_seconds == large.step_seconds


def test_a_new_file_on_a_full_disk_is_refused(small_disk):
    fill(small_disk)
    words = complaint(Store.open, small_disk / "results.db")
    assert "cannot be written: database or disk is full; choose another with --db" in words


def test_a_study_that_finds_the_disk_full_is_refused(small_disk):
    with Store.open(small_disk / "results.db") as store:
        fill(small_disk)
        assert "disk is full" in complaint(store.add_to_study, "trial", [f"{number:016x}" for number in range(2000)])


def test_memory_is_no_results_file():
    for opener in (Store.open, Store.open_existing):
        for name in (":memory:", "./:memory:"):
            assert complaint(opener, Path(name)) == (
                "results file :memory: would keep nothing: it is memory; choose a file with --db"
            )


def test_a_file_that_is_deleted_while_it_is_open_is_written_anew_with_all_it_had(path, store, make_record):
    store.add(make_record())
    for file in path.parent.glob(path.name + "*"):
        file.unlink()
    words = complaint(store.add, make_record(repeat=1))
    assert words == (
        f"results file {path} was deleted or moved away in the middle of the study, which was stopped; "
        f"all 2 records of it were saved in {path}: run the study again to go on"
    )
    with Store.open(path) as again:
        assert [record.repeat for record in again.records(with_steps=True)] == [0, 1]
        again.add(make_record(repeat=2))


def test_a_file_that_is_replaced_while_it_is_open_is_saved_beside_the_other(path, store, make_record):
    store.add(make_record())
    path.rename(path.with_name("moved.db"))
    path.write_text("another's")
    rescued = path.with_name("results-rescued.db")
    rescued.write_text("of an earlier time")
    words = complaint(store.check_in_place)
    assert path.read_text() == "another's"
    assert rescued.read_text() == "of an earlier time"
    assert "was replaced by another file" in words
    assert words.endswith(f"use it with --db {path.with_name('results-rescued1.db')}")
    with Store.open_existing(path.with_name("results-rescued1.db")) as again:
        assert len(again.records()) == 1


def test_what_cannot_be_saved_is_told(path, store, make_record, monkeypatch):
    store.add(make_record())
    for file in path.parent.glob(path.name + "*"):
        file.unlink()
    path.mkdir()
    path.rmdir()
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(OSError("no space")))
    assert f"what it had could not be saved to {path}: no space" in complaint(store.check_in_place)
