"""`paceline run train.py`: a user's script as it is, its samples/s as it prints them, and its failures as results."""

import re
from pathlib import Path

import pytest

from integration.conftest import Tool

ROOT = Path(__file__).parents[2]


@pytest.mark.torch
def test_samples_of_an_unchanged_script_are_those_that_it_prints(tool: Tool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    example = ROOT / "examples" / "plain_script" / "train.py"
    ended = tool("run", example, "--workers", "1,2", "--local-batch", "64", "--", "--steps", "400")
    assert ended.code == 0, ended.said
    for record in tool.records():
        printed = re.search(r"samples/s ([\d.]+)", record.log_tail)
        assert printed is not None and record.steady is not None
        assert record.steady.samples_per_second == pytest.approx(float(printed[1]), rel=0.02)
        assert record.steady.samples == 399 * 64 * record.spec.workers


def test_a_script_that_counts_its_steps_needs_no_framework(tool: Tool) -> None:
    text = "import paceline, sys\nfor _ in range(4):\n    with paceline.step(samples=int(sys.argv[1])):\n        pass\n"
    script = tool.write("count.py", text)
    assert tool("run", script, "--workers", "2", "--", "5").code == 0
    (record,) = tool.records()
    assert record.steady is not None and (record.steady.steps, record.steady.samples) == (4, 40)
    assert tool("run", script, "--workers", "2", "--", "6").code == 0
    assert len(tool.records()) == 2, "other arguments are another run"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print('nothing')", "no step was seen in bad.py"),
        ("raise KeyError('lost')", "rank 0 (worker): KeyError: 'lost'"),
        ("raise SystemExit(3)", "bad.py ended with exit code 3"),
    ],
)
def test_a_script_that_fails_is_a_failed_run_with_a_reason(tool: Tool, text: str, reason: str) -> None:
    assert tool("run", tool.write("bad.py", text)).code == 1
    (record,) = tool.records()
    assert reason in str(record.reason)


def test_what_the_script_decides_is_refused(tool: Tool) -> None:
    script = tool.write("some.py", "")
    for words, complaint in (
        (("--strategy", "torch-ddp"), "decides that itself"),
        (("--epochs", "2"), "epochs was given, and the script decides that itself"),
    ):
        ended = tool("run", script, *words)
        assert ended.code == 2 and complaint in " ".join(ended.said.split())
    assert "there is no script" in tool("run", "absent.py").said
    assert "arguments of a script" in " ".join(tool("run", "quick", "--", "--lr").said.split())
