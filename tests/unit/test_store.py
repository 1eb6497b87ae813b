"""The results file: what goes in comes out, and which record counts."""

import json
import sqlite3

import pytest

from paceline.record import Epoch, Finding, Rank, Startup, Status
from paceline.store import Store, pack, unpack


def test_a_record_comes_back_as_it_went_in(store, make_record):
    record = make_record(
        status=Status.FAILED,
        reason="rank 1 (worker): RuntimeError: «out of luck»",
        startup=Startup(launch_seconds=0.1, import_seconds=1.0, build_seconds=0.2, first_step_seconds=0.3),
        epochs=(Epoch(number=1, seconds=2.0, steps=4, samples=1024, cpu_seconds=3.0, train_loss=None),),
        ranks=(Rank(rank=0, role="worker", cores=(0, 1), cpu_seconds=2.0, peak_memory_bytes=1, details={"a": [1]}),),
        losses=(2.5, None),
        findings=(Finding(code="slow", text="it was slow", hint="be patient"),),
        step_seconds={0: (0.1, 0.2), 1: (0.3, 0.4)},
        log_tail="the end\n",
    )
    number = store.add(record)
    store.add_to_study("trial", [record.key])
    assert store.records(with_steps=True) == [record.model_copy(update={"id": number})]


def test_steps_come_back_exactly_and_only_when_asked_for(store, make_record):
    steps = {0: (0.1, 1e-9, 123.456), 3: (1 / 3,) * 1000}
    store.add(make_record(step_seconds=steps))
    assert store.records(with_steps=True)[0].step_seconds == steps
    assert store.records()[0].step_seconds == {}


def test_packing_steps_loses_nothing_and_saves_space():
    steps = tuple(0.01 for _ in range(1000))
    assert unpack(pack(steps)) == steps
    assert unpack(pack([])) == ()
    assert len(pack(steps)) < 1000


def test_records_have_growing_numbers_and_come_in_that_order(store, make_record, make_spec):
    numbers = [store.add(make_record(spec=make_spec(seed=seed))) for seed in (5, 3, 4)]
    assert numbers == sorted(numbers)
    assert [record.id for record in store.records()] == numbers
    assert [record.spec.seed for record in store.records()] == [5, 3, 4]


def test_records_are_there_when_the_file_is_opened_again(path, make_record):
    with Store.open(path) as store:
        store.add(make_record())
    with Store.open(path) as store:
        store.add(make_record(repeat=1))
    with Store.open_existing(path) as store:
        assert [record.repeat for record in store.records()] == [0, 1]


def test_an_environment_that_many_records_share_is_stored_once(store, path, make_record):
    for repeat in range(5):
        store.add(make_record(repeat=repeat))
    store.add(make_record(repeat=5, environment={"python": "3.13"}))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM environments").fetchone() == (2,)
    connection.close()
    assert [record.environment["python"] for record in store.records()] == ["3.12.1"] * 5 + ["3.13"]


def test_the_folder_of_a_new_file_is_made(tmp_path, make_record):
    path = tmp_path / "a" / "b" / "results.db"
    with Store.open(path) as store:
        store.add(make_record())
    assert path.is_file()


def test_the_newest_record_of_a_configuration_and_repeat_counts(store, make_record):
    store.add(make_record(wall_seconds=1.0))
    store.add(make_record(wall_seconds=2.0, repeat=1))
    store.add(make_record(wall_seconds=3.0))
    assert [(record.repeat, record.wall_seconds) for record in store.records()] == [(1, 2.0), (0, 3.0)]


def test_no_record_is_ever_deleted(store, path, make_record):
    for _ in range(3):
        store.add(make_record())
    assert len(store.records()) == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (3,)
    connection.close()


@pytest.mark.parametrize("status", [Status.OK, Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT])
def test_a_run_with_a_result_is_done(store, make_record, status):
    record = make_record(status=status, repeat=2)
    store.add(record)
    assert store.done() == {(record.key, 2)}


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.INTERRUPTED])
def test_a_run_that_was_skipped_or_interrupted_is_not_done(store, make_record, status):
    store.add(make_record(status=status))
    assert store.done() == set()


def test_only_good_results_are_done_when_others_are_to_be_tried_again(store, make_record, make_spec):
    good, bad = make_record(), make_record(spec=make_spec(seed=1), status=Status.FAILED)
    store.add(good)
    store.add(bad)
    assert store.done(only_ok=True) == {(good.key, 0)}
    assert store.done() == {(good.key, 0), (bad.key, 0)}


@pytest.mark.parametrize("later", [Status.INTERRUPTED, Status.SKIPPED])
def test_a_run_that_is_done_always_shows_its_result(store, make_record, later):
    record = make_record()
    store.add(record)
    store.add(make_record(status=later))
    shown = {(shown.key, shown.repeat) for shown in store.records() if shown.ok}
    assert shown == store.done()


def test_a_skip_is_known_by_its_reason(store, make_record):
    record = make_record(status=Status.SKIPPED, reason="no GPU")
    assert not store.has_skipped(record.key, "no GPU")
    store.add(record)
    assert store.has_skipped(record.key, "no GPU")
    assert not store.has_skipped(record.key, "no PyTorch")


def test_a_skip_is_over_when_the_run_was_made_after_all(store, make_record):
    record = make_record(status=Status.SKIPPED, reason="no GPU")
    store.add(record)
    store.add(make_record())
    assert not store.has_skipped(record.key, "no GPU")


def test_a_study_has_the_records_of_its_configurations(store, make_record, make_spec):
    ours, theirs = make_record(), make_record(spec=make_spec(seed=1))
    store.add(ours)
    store.add(theirs)
    store.add_to_study("ours", [ours.key])
    store.add_to_study("theirs", [theirs.key])
    assert [record.key for record in store.records("ours")] == [ours.key]
    assert [record.key for record in store.records("theirs")] == [theirs.key]
    assert len(store.records()) == 2
    assert store.records("nobody's") == []


def test_a_run_that_another_study_made_belongs_to_both(store, make_record):
    record = make_record(study="first")
    store.add(record)
    store.add_to_study("first", [record.key])
    store.add_to_study("second", [record.key])
    assert store.records("first") == store.records("second") != []


def test_studies_are_listed_by_name_without_doubles(store):
    store.add_to_study("b", ["1", "2"])
    store.add_to_study("a", ["1"])
    store.add_to_study("b", ["2", "3"])
    assert store.studies() == ["a", "b"]


def test_every_record_of_the_file_is_json_that_other_programs_can_read(store, path, make_record):
    store.add(make_record(status=Status.FAILED, reason="out of luck"))
    connection = sqlite3.connect(path)
    (body,) = connection.execute("SELECT record FROM runs").fetchone()
    connection.close()
    assert json.loads(body)["reason"] == "out of luck"
