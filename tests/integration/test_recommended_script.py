"""What is recommended as a script: alone on standard output, the answer beside it, and it is a script that compiles."""

import pytest

from integration.conftest import Tool

MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
"""
QUESTION = ("recommend", "--model", "mine.py:build", "--input-shape", "3x4x4", "--classes", "10", "--workers", "1..2")


@pytest.mark.torch
def test_the_script_of_the_best_is_printed_alone_and_the_answer_beside_it(tool: Tool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    tool.write("mine.py", MODEL)
    ended = tool(*QUESTION, "--emit", "script")
    assert ended.code == 0, ended.said
    compile(ended.out, "train.py", "exec")
    assert "import paceline" not in ended.out
    assert "Best for throughput on" in ended.out
    assert "Use torch-" in ended.err


@pytest.mark.parametrize("words", [("--emit", "poem"), ("--emit", "script", "--json")])
def test_anything_but_a_script_or_a_configuration_is_refused(tool: Tool, words: tuple[str, ...]) -> None:
    ended = tool("recommend", *words)
    assert ended.code == 2
    assert "write one of script, accelerate, deepspeed, torchtitan, without --json" in ended.said
