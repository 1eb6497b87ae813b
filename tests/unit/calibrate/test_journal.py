"""What is kept of a calibration on the way, and what is said of how far it is."""

import os
import time
from pathlib import Path

import pytest

from paceline.calibrate.journal import MOST_AGE_SECONDS, Journal
from paceline.calibrate.phases import Phases
from paceline.record import Record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "system.toml.partial"


def never() -> None:
    raise AssertionError("it was measured again")


def test_what_was_measured_is_not_measured_again_after_an_interruption(path: Path) -> None:
    journal = Journal(path, "this machine")
    assert journal.known == 0
    assert journal.measured("operations", lambda: {"add": [1.5, 2.0]}) == {"add": [1.5, 2.0]}
    again = Journal(path, "this machine")
    assert again.known == 1
    assert again.measured("operations", never) == {"add": [1.5, 2.0]}
    assert again.measured("transfers", lambda: 3) == 3
    assert Journal(path, "this machine").known == 2


def test_a_second_measurement_of_a_name_is_another_one(path: Path) -> None:
    journal = Journal(path, "this machine")
    assert [journal.measured("run", lambda value=value: value) for value in (1, 2)] == [1, 2]
    again = Journal(path, "this machine")
    assert [again.measured("run", never) for _ in range(2)] == [1, 2]
    assert again.measured("run", lambda: 3) == 3


def test_records_are_kept_whole(path: Path, make_record) -> None:
    record = make_record(step_seconds={0: (0.1, 0.2)}, wall_seconds=2.5)
    assert Journal(path, "x").record("run", lambda: record) == record
    kept: Record = Journal(path, "x").record("run", never)
    assert kept == record


@pytest.mark.parametrize("change", ["identity", "fresh", "age", "no journal"])
def test_measurements_of_another_calibration_are_not_taken(path: Path, change: str) -> None:
    Journal(path, "this machine").measured("operations", lambda: 1)
    if change == "age":
        old = time.time() - MOST_AGE_SECONDS - 1
        os.utime(path, (old, old))
    if change == "no journal":
        path.write_bytes(b"\xff\xfe nothing of ours")
    journal = Journal(path, "another" if change == "identity" else "this machine", fresh=change == "fresh")
    assert journal.known == 0
    assert journal.measured("operations", lambda: 2) == 2


def test_a_line_that_was_cut_off_is_measured_again(path: Path) -> None:
    journal = Journal(path, "x")
    for name in ("a", "b"):
        journal.measured(name, lambda: 1)
    path.write_text(path.read_text()[:-5])
    assert Journal(path, "x").known == 1


def test_a_whole_calibration_leaves_no_journal(path: Path) -> None:
    journal = Journal(path, "x")
    assert path.is_file()
    journal.close()
    assert not path.exists()
    Journal().close()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_each_phase_says_its_number_and_how_long_the_rest_takes() -> None:
    said: list[str] = []
    clock = Clock()
    phases = Phases(said.append, [10.0, 5.0, 5.0], clock)
    phases.note("starting")
    phases.begin("first")
    clock.seconds += 20
    phases.begin("second")
    phases.note("half of it")
    assert said == [
        "starting",
        "phase 1 of 3: first, about 20 s left",
        "phase 2 of 3: second, about 20 s left",
        "phase 2 of 3: half of it",
    ]


def test_phases_that_were_measured_before_do_not_count_as_fast() -> None:
    said: list[str] = []
    clock = Clock()
    phases = Phases(said.append, [10.0, 10.0, 10.0], clock)
    phases.begin("known")
    phases.begin("new")
    clock.seconds += 30
    phases.begin("last")
    assert said[-1] == "phase 3 of 3: last, about 30 s left"


def test_more_phases_than_were_foreseen_are_counted_too() -> None:
    said: list[str] = []
    phases = Phases(said.append, [1.0], Clock())
    phases.begin("first")
    phases.begin("unforeseen")
    assert said[-1].startswith("phase 2 of 2: unforeseen")
