"""The user, or the system, stops the tool in the middle of a study: nothing finished is lost and nothing runs on."""

import signal
import time

import pytest

from integration.conftest import Started, Tool, wait_until
from paceline.record import Status

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
