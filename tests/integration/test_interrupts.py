"""The user, or the system, stops the tool in the middle of a study: nothing finished is lost and nothing runs on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.conftest import PATIENCE_SECONDS, SCRIPT, Started, Tool, wait_until
from paceline.record import Status
from paceline.runs.processes import is_alive

# The second of three runs takes eight seconds and more, so that a signal meets it in the middle of its steps.
SLOW = """
name = "slow"
order_seed = 3
[fixed]
strategy = "fake"
workers = 2
global_batch = 64
knobs = { real_time = true, step_ms = 200.0 }
[factors]
steps = [3, 40, 4]
"""
# After its workers were started, a run is past its imports and has not come to its end.
MIDDLE_SECONDS = 1.0


def stop_in_second_run(tool: Tool, number: signal.Signals, later_seconds: float) -> Started:
    """Starts the slow study and sends the signal once the first run is stored and the second has its workers."""
    tool.write("slow.toml", SLOW)
    started = tool.start("run", "slow.toml")
    started.wait_for("1/3 ok")
    wait_until(lambda: len(started.workers()) == 2, "the second run's workers")
    time.sleep(later_seconds)
    started.process.send_signal(number)
    return started


def finish(tool: Tool) -> None:
    """The same command again makes the two runs that are left, and only those."""
    ended = tool("run", "slow.toml")
    assert ended.code == 0, ended.err
    assert "slow: 2 runs to make, 1 already stored" in ended.err
    assert [record.status for record in tool.records()] == [Status.OK] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupted_study_keeps_what_is_finished_exits_with_130_and_goes_on_later(
    tool: Tool, number: signal.Signals
) -> None:
    ended = stop_in_second_run(tool, number, MIDDLE_SECONDS).end()
    assert ended.code == 130
    assert tool.running_workers() == []
    assert tool.left_folders() == []
    kept = [(record.status, record.reason) for record in tool.records()]
    assert kept == [(Status.OK, None), (Status.INTERRUPTED, "interrupted by the user")]
    assert "Traceback" not in ended.err
    assert "interrupted; every finished run is stored, the same command goes on from there" in ended.err
    finish(tool)


@pytest.mark.parametrize("later_seconds", [pytest.param(0.0, marks=pytest.mark.soak), MIDDLE_SECONDS])
def test_a_tool_killed_at_any_moment_leaves_no_worker_and_loses_no_finished_run(
    tool: Tool, later_seconds: float
) -> None:
    ended = stop_in_second_run(tool, signal.SIGKILL, later_seconds).end()
    assert ended.code == -signal.SIGKILL
    wait_until(lambda: tool.running_workers() == [], "the workers to die with their tool")
    assert [record.status for record in tool.records()] == [Status.OK]
    finish(tool)
    assert tool.left_folders() == []


def test_a_terminal_that_is_closed_hangs_up_twice_and_the_interrupted_run_is_stored_all_the_same(tool: Tool) -> None:
    started = stop_in_second_run(tool, signal.SIGHUP, MIDDLE_SECONDS)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        started.process.send_signal(number)
    assert started.end().code == 130
    assert [record.status for record in tool.records()] == [Status.OK, Status.INTERRUPTED]
    assert tool.running_workers() == []
    assert tool.left_folders() == []


def test_a_study_under_nohup_outlives_its_terminal(tool: Tool) -> None:
    tool.write("slow.toml", SLOW.replace("[3, 40, 4]", "[3, 4]"))
    started = tool.start_words(["nohup", str(SCRIPT), "run", "slow.toml"])
    wait_until(lambda: len(started.workers()) == 2, "the workers of a run")
    started.process.send_signal(signal.SIGHUP)
    assert started.end().code == 0
    assert [record.status for record in tool.records()] == [Status.OK] * 2


# A module that every process of a run imports, and that never ends.
ENDLESS = """
import os, pathlib, time
pathlib.Path(os.environ["IMPORTING"]).write_text(str(os.getpid()))
time.sleep(3600)
"""
# Starts a process as the tool does, with its own number where that process looks for it.
PARENT = """
import os, subprocess, sys
own = str(os.getpid())
words = [own if word == "PARENT" else word for word in sys.argv[1:]]
subprocess.Popen([sys.executable, "-P", "-m", *words], env={**os.environ, "PACELINE_AGENT_PID": own}).wait()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["paceline.runs.worker", "folder", "0", "1", "PARENT"],
        ["paceline.runs.fork_server", "1", "PARENT", "paceline.runs.worker"],
        ["paceline.runs.tracer", "PARENT", "1"],
        ["paceline.runs.links.keeper", "1", "PARENT"],
        ["paceline.runs.elastic.member", "folder", "0"],
    ],
    ids=lambda words: words[0].rpartition(".")[2],
)
def test_a_process_whose_tool_is_killed_while_it_imports_dies_at_once(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text(ENDLESS)
    importing = tmp_path / "importing"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "IMPORTING": str(importing)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *words], env=environment)
    try:
        wait_until(lambda: importing.exists() and importing.read_text(), "the process to be in its imports")
        pid = int(importing.read_text())
    finally:
        parent.kill()
        parent.wait(timeout=PATIENCE_SECONDS)
    try:
        wait_until(lambda: not is_alive(pid), "the process to die with its parent")
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
