"""Whose turn it is: claims of processes that live, that are gone, and that cannot be seen."""

import os
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest

from paceline.record import Status
from paceline.store import Owner, Store, claims, is_here


@pytest.fixture
def other(path):
    with Store.open(path) as opened:
        yield opened


def put(path, owner, key="key", repeat=0, until=None):
    """A claim as another tool would leave it."""
    connection = sqlite3.connect(path)
    values = (owner.boot, key, repeat, owner.model_dump_json(), until or time.time() + 1000)
    connection.execute("INSERT INTO claims VALUES (?, ?, ?, ?, ?)", values)
    connection.commit()
    connection.close()


def claimed(path):
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT key, repeat FROM claims").fetchall()
    connection.close()
    return rows


@pytest.fixture
def living():
    """A process that lives and has claimed something."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def owner_of(pid, **fields):
    values = {**Owner.here().model_dump(), "pid": pid, "started": claims._started(pid), "claim": "theirs"}
    return Owner(**{**values, **fields})


def test_one_run_at_a_time_is_made_on_a_machine(store, other, path):
    first = store.claim("a", 0, 10.0)
    assert is_here(first)
    assert other.claim("b", 0, 10.0) == first
    assert claimed(path) == [("a", 0)]
    store.release(first)
    assert not is_here(first)
    second = other.claim("b", 0, 10.0)
    assert is_here(second)
    other.release(second)
    assert claimed(path) == []


def test_a_claim_of_a_process_that_lives_holds(store, path, living):
    put(path, owner_of(living))
    owner = store.claim("a", 0, 10.0)
    assert not is_here(owner)
    assert owner.about == f"process {living}"


def test_a_claim_of_a_process_that_is_gone_ends(store, path, living):
    put(path, owner_of(living).model_copy(update={"pid": 2**22 + 1}))
    assert is_here(store.claim("a", 0, 10.0))
    assert claimed(path) == [("a", 0)]


def test_a_process_that_was_killed_is_gone_before_anyone_has_asked_after_it(store, path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    put(path, owner_of(process.pid))
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert is_here(store.claim("a", 0, 10.0))
    process.communicate()


def test_a_number_that_another_process_has_now_is_another_process(store, path, living):
    put(path, owner_of(living, started=5.0))
    assert is_here(store.claim("a", 0, 10.0))


def test_a_claim_from_before_the_machine_started_anew_ends(store, path):
    put(path, owner_of(os.getpid(), boot="the boot before"))
    assert is_here(store.claim("key", 0, 10.0))


def test_a_claim_of_this_process_that_no_one_holds_ends(store, path):
    put(path, owner_of(os.getpid()))
    assert is_here(store.claim("a", 0, 10.0))


@pytest.mark.parametrize("fields", [{"namespace": "pid:[1]"}, {"boot": "another", "host": "another"}])
def test_a_process_that_cannot_be_seen_has_until_its_run_must_have_ended(store, path, fields):
    put(path, owner_of(os.getpid(), **fields))
    assert not is_here(store.claim("key", 0, 10.0))


@pytest.mark.parametrize("fields", [{"namespace": "pid:[1]"}, {"boot": "another", "host": "another"}])
def test_a_process_that_cannot_be_seen_has_no_longer_than_that(store, path, fields):
    put(path, owner_of(os.getpid(), **fields), until=time.time() - 1)
    assert is_here(store.claim("key", 0, 10.0))


def test_another_machine_may_make_other_runs_meanwhile(store, path):
    put(path, owner_of(os.getpid(), boot="another", host="another"))
    assert is_here(store.claim("another", 0, 10.0))
    assert len(claimed(path)) == 2


def test_a_claim_that_cannot_be_read_is_no_claim(store, path):
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO claims VALUES ('machine', 'a', 0, 'nonsense', 9e9)")
    connection.commit()
    connection.close()
    assert is_here(store.claim("a", 0, 10.0))


def test_a_result_counts_as_made_meanwhile_only_if_it_is_newer(store, make_record):
    record = make_record()
    store.add(record)
    newest = store.newest()
    assert not store.is_done_since(newest, record.key, 0)
    store.add(make_record(status=Status.INTERRUPTED))
    assert not store.is_done_since(newest, record.key, 0)
    store.add(make_record(status=Status.FAILED))
    assert store.is_done_since(newest, record.key, 0)
    assert not store.is_done_since(newest, record.key, 1)


def test_claims_of_this_process_are_forgotten_with_their_run(store):
    owner = store.claim("a", 0, 10.0)
    store.release(owner)
    assert owner.claim not in claims._held
