"""A large results file is read by two processes: what they know together is what one alone would know."""

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.analysis.findings import finding_values
from paceline.cli.tables import summaries
from paceline.cli.tables.summaries import summarise_file, summarise_stored
from paceline.errors import DamagedRecords
from paceline.record import Epoch, Finding, Rank, Record
from paceline.store import Store

FINDING = Finding(code="oversubscribed", text="more workers than cores", hint="use fewer")


@pytest.fixture
def db(path: Path, make_record: Callable[..., Record], make_spec: Callable[..., object]) -> Path:
    """Two repeats of ten configurations, some with a finding."""
    rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=50_000_000)
    with Store.open(path) as store:
        for repeat in range(2):
            for seed in range(10):
                epochs = (
                    Epoch(number=1, seconds=1.0 + seed / 10, steps=4, samples=1000, cpu_seconds=1.0, train_loss=1.0),
                )
                store.add(
                    make_record(
                        spec=make_spec(seed=seed, workers=1 + seed % 2), epochs=epochs, ranks=(rank,), repeat=repeat,
                        findings=(FINDING,) * (seed % 3 == 0),
                    )
                )  # fmt: skip
    return path


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is large enough for two, and there are cores for them."""
    monkeypatch.setattr(summaries, "LEAST_FOR_TWO", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


def known(db: Path) -> tuple[object, object]:
    with Store.open_existing(db) as store:
        summary, findings = summarise_file(store, None)
    rows = summary.rows()
    return rows, finding_values(findings.gather(rows))


def test_two_processes_know_what_one_does(db: Path, request: pytest.FixtureRequest) -> None:
    with Store.open_existing(db) as store:
        summary, findings = summarise_stored(store.configurations())
    rows = summary.rows()
    request.getfixturevalue("large")
    assert known(db) == (rows, finding_values(findings.gather(rows)))
    assert len(rows) == 10


def test_what_is_left_to_a_process_that_breaks_down_is_done_all_the_same(
    db: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    rows, _ = known(db)
    assert len(rows) == 10


def test_what_the_second_finds_damaged_is_named(db: Path, large: None) -> None:
    with Store.open_existing(db) as store:
        number = next(number for number, key in store.numbers() if summaries._is_second(key))
    connection = sqlite3.connect(db)
    with connection:
        connection.execute("UPDATE runs SET record = '{' WHERE id = ?", (number,))
    connection.close()
    with pytest.warns(DamagedRecords, match=f"record {number}: its checksum differs"):
        rows, _ = known(db)
    assert len(rows) == 10
