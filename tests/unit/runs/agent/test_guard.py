"""The guard of an agent, beside a process that stands for one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_SECONDS = 30.0
# Beats for as long as its standard input is open, where it beats at all.
AGENT = """
import os, pathlib, select, sys
from paceline.runs.agent.guard import start_guard
folder, lease, beats = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "beats"
folder.mkdir()
guard = start_guard(folder, lease, (1,))
print("ready", flush=True)
while not select.select([0], [], [], 0.05)[0]:
    if beats:
        guard.beat()
"""


def agent(folder: Path, lease: float, way: str) -> "subprocess.Popen[bytes]":
    started = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder), str(lease), way], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert started.stdout is not None and started.stdout.readline() == b"ready\n"
    return started


def await_gone(folder: Path) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while folder.exists():
        assert time.monotonic() < until, "the folder was left"
        time.sleep(0.01)


@pytest.mark.parametrize("end", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_the_folder_goes_with_the_agent(tmp_path: Path, end: signal.Signals | None) -> None:
    started = agent(tmp_path / "folder", 60.0, "beats")
    assert (tmp_path / "folder").is_dir()
    if end is not None:
        started.send_signal(end)
    # Nobody else holds what the agent had open: its output ends with it.
    out, _ = started.communicate(timeout=PATIENCE_SECONDS)
    assert (started.returncode, out) == (-end if end is not None else 0, b"")
    await_gone(tmp_path / "folder")


def test_an_agent_that_beats_is_left_alone_and_one_that_falls_silent_is_ended(tmp_path: Path) -> None:
    started = agent(tmp_path / "folder", 1.0, "beats")
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(timeout=2.0)
    assert (tmp_path / "folder").is_dir()
    started.send_signal(signal.SIGSTOP)
    assert started.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    await_gone(tmp_path / "folder")
    started.communicate()
