"""What a fork server reports of the processes that it forks."""

import os
import signal
from pathlib import Path

import pytest

from paceline.runs.fork_server import ForkedProcess, ForkServer
from paceline.runs.wire import ForkRequest, ProcessEnded, ProcessStarted


def unstarted() -> ForkServer:
    """The client's side alone, without a process behind it."""
    server = object.__new__(ForkServer)
    server.exit_codes, server.ended = {}, False
    server.collect_exit_codes = lambda seconds=0.0: None  # type: ignore[method-assign]
    return server


def test_a_process_runs_until_its_end_is_reported():
    server = unstarted()
    assert server.record_message(ProcessStarted(pid=42)) == 42
    assert ForkedProcess(42, server).poll() is None
    assert server.record_message(ProcessEnded(pid=42, code=3)) is None
    assert ForkedProcess(42, server).poll() == 3


def test_a_number_that_the_system_gives_out_again_does_not_bring_back_an_old_end():
    server = unstarted()
    server.record_message(ProcessStarted(pid=42))
    server.record_message(ProcessEnded(pid=42, code=0))
    server.record_message(ProcessStarted(pid=42))
    assert ForkedProcess(42, server).poll() is None


def test_a_forked_process_calls_what_was_asked_with_its_environment_and_its_log(tmp_path: Path):
    (tmp_path / "called.py").write_text(
        "import os\n"
        "def succeed(argument, fds):\n    print(argument, len(fds), os.environ['LATE'])\n    return 0\n"
        "def fail(argument, fds):\n    raise ValueError(argument)\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    server = ForkServer(("called",), environment)
    try:
        logs = [tmp_path / "good.log", tmp_path / "bad.log"]
        fields = {"argument": "word", "environment": {"LATE": "later"}}
        good = server.fork(ForkRequest(entry="called:succeed", log=logs[0], **fields), [0])
        bad = server.fork(ForkRequest(entry="called:fail", log=logs[1], **fields))
        assert (good.wait(), bad.wait()) == (0, 1)
        assert logs[0].read_text() == "word 1 later\n"
        assert "ValueError: word" in logs[1].read_text()
        assert "LATE" not in os.environ
    finally:
        server.close()
    assert server.process.returncode is not None


def test_a_server_that_cannot_import_says_so_when_it_is_asked(tmp_path: Path):
    server = ForkServer(("no_such_module",), dict(os.environ))
    try:
        assert server.wait_for_imports() is None
    finally:
        server.close()


def test_a_server_that_is_killed_takes_its_processes_along_and_says_so(tmp_path: Path):
    (tmp_path / "called.py").write_text("import time\ndef wait(argument, fds):\n    time.sleep(3600)\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    server = ForkServer(("called",), {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path})
    try:
        request = ForkRequest(entry="called:wait", argument="", log=tmp_path / "log", environment={})
        waiting = server.fork(request)
        assert (waiting.poll(), server.was_killed) == (None, False)
        server.process.kill()
        assert waiting.wait() == -signal.SIGKILL
        server.process.wait()
        assert server.was_killed
        with pytest.raises(ChildProcessError, match="the fork server ended"):
            server.fork(request)
    finally:
        server.close()
