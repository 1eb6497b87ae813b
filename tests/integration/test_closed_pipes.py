"""Whoever reads the output stops reading, as `head -1` does: that is no failed run, and no run is lost by it."""

import subprocess
from pathlib import Path

import pytest

from integration.conftest import PATIENCE_SECONDS, SCRIPT, Tool
from paceline.record import Status


def code_when_nobody_reads(tool: Tool, *words: str, messages_too: bool = False) -> int:
    """The exit code of a command whose output, and messages, go to a pipe that is closed already."""
    pipe = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    pipe.wait(timeout=PATIENCE_SECONDS)
    ended = subprocess.run(
        [SCRIPT, *words], cwd=tool.folder, env=tool.environment, stdout=pipe.stdin,
        stderr=pipe.stdin if messages_too else subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert not ended.stderr or b"Traceback" not in ended.stderr
    assert not ended.stderr or b"BrokenPipe" not in ended.stderr
    assert pipe.stdin is not None
    pipe.stdin.close()
    return ended.returncode


@pytest.mark.parametrize("words", ["show", "show --json", "strategies", "run --help", "--help", "show --csv"])
def test_a_command_whose_output_is_no_longer_read_did_what_it_was_asked(shared_tool: Tool, words: str) -> None:
    shared_tool("run", "--strategy", "fake", "--steps", "2")
    assert code_when_nobody_reads(shared_tool, *words.split()) == 0


@pytest.mark.parametrize("words", ["show", "show --json", "--version", "strategies", "run --strategy fake --steps 2"])
def test_output_that_cannot_be_written_is_said(shared_tool: Tool, words: str) -> None:
    shared_tool("run", "--strategy", "fake", "--steps", "2")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [SCRIPT, *words.split()], cwd=shared_tool.folder, env=shared_tool.environment, stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert "the output cannot be written: No space left on device" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr


def test_messages_that_cannot_be_written_end_no_study(tool: Tool) -> None:
    with Path("/dev/full").open("w") as full:
        words = [SCRIPT, "run", "--strategy", "fake", "--steps", "2", "--repeats", "3"]
        code = subprocess.run(
            words, cwd=tool.folder, env=tool.environment, stdout=subprocess.DEVNULL, stderr=full,
            timeout=PATIENCE_SECONDS, check=False,
        ).returncode  # fmt: skip
    assert code == 0
    assert [record.status for record in tool.records()] == [Status.OK] * 3


def test_wrong_input_is_still_wrong_and_failed_runs_still_failed(tool: Tool) -> None:
    assert code_when_nobody_reads(tool, "run", "--strategy", "nonsense") == 2
    assert code_when_nobody_reads(tool, "run", "--strategy", "fake", "--steps", "3", "--knob", "fault=fail") == 1


def test_a_study_goes_on_when_its_messages_are_no_longer_read(tool: Tool) -> None:
    words = ["run", "--strategy", "fake", "--steps", "2", "--repeats", "3"]
    assert code_when_nobody_reads(tool, *words, messages_too=True) == 0
    assert [record.status for record in tool.records()] == [Status.OK] * 3
