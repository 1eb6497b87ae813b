"""Several tools on one study take turns, and a results file that goes away in the middle is saved."""

import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from integration.conftest import Started, Tool, wait_until
from paceline.record import Status

STUDY = """
name = "shared"
repeats = 2
[fixed]
strategy = "fake"
global_batch = 64
steps = 2
knobs = { fault = "none" }
[factors]
seed = [0, 1, 2]
"""
RUNS = 6
# Sleeps through its steps for as long as a test may need.
SLOW = ("run", "--strategy", "fake", "--knob", "real_time=true", "--knob", "step_ms=100", "--steps", "3000")


def stored(tool: Tool, db: str = "paceline.db") -> Counter[tuple[str, int]]:
    """How often each run is in the file, also those that newer ones hide."""
    connection = sqlite3.connect(tool.folder / db)
    runs = Counter(connection.execute("SELECT key, repeat FROM runs WHERE status = 'ok'").fetchall())
    connection.close()
    return runs


def claims(tool: Tool) -> int:
    connection = sqlite3.connect(tool.folder / "paceline.db")
    (count,) = connection.execute("SELECT count(*) FROM claims").fetchone()
    connection.close()
    return int(count)


def start_numbered(tool: Tool, number: int, *words: str) -> Started:
    """Starts a tool whose words do not mix with those of others."""
    started = tool.start(*words)
    out, err = (path.rename(path.with_name(f"{path.name}-{number}")) for path in (started.out, started.err))
    return Started(started.process, out, err)


@pytest.mark.parametrize("tools", [2, 3])
def test_tools_that_share_a_study_make_each_run_once_and_one_at_a_time(tool: Tool, tools: int) -> None:
    tool.write("shared.toml", STUDY)
    ends = [started.end() for started in [start_numbered(tool, n, "run", "shared.toml") for n in range(tools)]]
    assert [ended.code for ended in ends] == [0] * tools, ends
    assert set(stored(tool).values()) == {1}
    assert len(stored(tool)) == RUNS
    assert claims(tool) == 0
    # Every tool ends with the results of the whole study, whoever made the runs.
    assert len({ended.out for ended in ends}) == 1
    times = sorted((record.started_at, record.wall_seconds) for record in tool.records())
    assert len(times) == RUNS
    assert sum(ended.err.count(" ok ") for ended in ends) == RUNS
    # One that starts when another has stored a run plans fewer.
    plans = (re.search(r"(\d+) runs? to make", ended.err) for ended in ends)
    planned = [int(plan[1]) if plan else 0 for plan in plans]
    assert max(planned) == RUNS
    elsewhere = sum(ended.err.count("stored by another Paceline meanwhile") for ended in ends)
    assert elsewhere == sum(planned) - RUNS


def test_a_tool_says_whose_turn_it_is_and_goes_on_when_that_one_is_killed(tool: Tool) -> None:
    first = start_numbered(tool, 1, *SLOW)
    wait_until(first.workers, "the first tool's run")
    second = start_numbered(tool, 2, "run", "--strategy", "fake", "--steps", "2")
    second.wait_for(f"waiting: another Paceline (process {first.process.pid}) makes a run")
    assert second.process.poll() is None
    assert claims(tool) == 1
    first.process.kill()
    first.process.wait()
    ended = second.end()
    assert ended.code == 0, ended
    assert [record.spec.steps for record in tool.records()] == [2]
    assert claims(tool) == 0
    wait_until(lambda: not tool.running_workers(), "the end of the killed tool's workers")
    for folder in tool.temporary.glob("paceline-run-*"):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def test_a_tool_that_waits_can_be_interrupted(tool: Tool) -> None:
    first = start_numbered(tool, 1, *SLOW)
    wait_until(first.workers, "the first tool's run")
    second = start_numbered(tool, 2, "run", "--strategy", "fake", "--steps", "2")
    second.wait_for("waiting: another Paceline")
    second.process.terminate()
    assert second.end().code == 130
    first.process.terminate()
    assert first.end().code == 130
    assert claims(tool) == 0


def test_a_results_file_in_memory_is_refused(tool: Tool) -> None:
    for words in (("run", "--strategy", "fake", "--steps", "2"), ("show",), ("run", "quick", "--dry-run")):
        ended = tool(*words, "--db", ":memory:")
        assert ended.code == 2, ended
        assert "results file :memory: would keep nothing: it is memory; choose a file with --db" in ended.said
    assert tool.listing() == []


LONG_STUDY = STUDY.replace("repeats = 2", "repeats = 40")


def deleted_in_the_middle(tool: Tool, delete: str) -> Started:
    tool.write("shared.toml", LONG_STUDY)
    started = tool.start("run", "shared.toml", "--db", "results/paceline.db")
    db = tool.folder / "results" / "paceline.db"
    wait_until(lambda: db.exists() and started.err.read_text().count(" ok ") > 2, "some runs")
    if delete == "folder":
        for path in db.parent.iterdir():
            path.unlink()
        db.parent.rmdir()
    elif delete == "replaced":
        db.rename(db.with_name("moved.db"))
        db.write_text("another file")
    else:
        db.unlink()
    return started


@pytest.mark.parametrize("delete", ["file", pytest.param("folder", marks=pytest.mark.soak)])
def test_a_results_file_that_is_deleted_in_the_middle_is_written_anew_and_told(tool: Tool, delete: str) -> None:
    ended = deleted_in_the_middle(tool, delete).end()
    assert ended.code == 2, ended
    done = ended.err.count(" ok ")
    assert "was deleted or moved away in the middle of the study, which was stopped" in ended.said
    assert "run the study again to go on" in ended.said
    records = tool.records("results/paceline.db")
    # The one in which it was noticed is stored as well.
    assert len(records) in (done, done + 1)
    assert {record.status for record in records} == {Status.OK}
    again = tool("run", "shared.toml", "--repeats", "2", "--db", "results/paceline.db")
    assert again.code == 0, again
    assert len(tool.records("results/paceline.db")) >= RUNS


@pytest.mark.soak
def test_a_results_file_that_is_replaced_is_left_alone_and_saved_beside_it(tool: Tool) -> None:
    ended = deleted_in_the_middle(tool, "replaced").end()
    assert ended.code == 2, ended
    assert "was replaced by another file in the middle of the study" in ended.said
    assert Path(tool.folder, "results/paceline.db").read_text() == "another file"
    assert len(tool.records("results/paceline-rescued.db")) >= 3
    assert "use it with --db results/paceline-rescued.db" in ended.said
