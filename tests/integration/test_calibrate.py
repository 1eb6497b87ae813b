"""`paceline calibrate` as a user calls it, with a model of the user's that crashes once on the way, and interrupted."""

import json
import signal

import pytest

from integration.conftest import Tool
from paceline.calibrate.trials import timed_strategies
from paceline.systems.files import load_hardware

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

# Looking at the model, and all training but the first with this many samples, goes well.
MINE = """
import os
import signal
from pathlib import Path

from torch import nn

CRASHED = Path(__file__).with_suffix(".crashed")


class Fragile(nn.Module):
    def forward(self, given):
        if len(given) == 96 and not CRASHED.exists():
            CRASHED.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return given


def build():
    return nn.Sequential(Fragile(), nn.Flatten(), nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 10))
"""
MODEL = ("--model", "mine.py:build", "--input-shape", "3x8x8", "--classes", "10")


def test_a_model_of_the_users_is_calibrated_with_and_predicted(tool: Tool) -> None:
    tool.write("mine.py", MINE)
    ended = tool("calibrate", *MODEL, "--frameworks", "torch")
    assert ended.code == 0, ended.err
    assert "torch-single x1 failed: rank 0 (worker) was killed by SIGSEGV" in ended.err
    assert "written to paceline-system.toml" in ended.out
    known = load_hardware(str(tool.folder / "paceline-system.toml")).calibration
    assert known is not None
    (steps,) = known.steps
    assert steps.seconds.values[-1] > steps.seconds.values[0] > 0
    assert {one.kind for one in known.collectives} >= {"all-reduce", "all-gather", "reduce-scatter", "send"}
    for one in known.overheads:
        assert set(one.held_per_activation_byte) == {steps.digest}, one.strategy
    assert {"torch-ddp", "torch-zero"} <= {one.strategy for one in known.overheads} <= set(timed_strategies())
    assert all(record.ok for record in tool.records())
    ended = tool("predict", *MODEL, "--strategy", "torch-single,torch-ddp", "--workers", "1,2", "--global-batch", "64",
                 "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    told = {(one["strategy"], one["workers"]): one for one in json.loads(ended.out)}
    alone = told["torch-single", 1]
    assert alone["step_seconds"]["value"] == pytest.approx(steps.seconds.at(64), rel=0.01)
    assert told["torch-ddp", 2]["memory_bytes"]["value"] > 0


@pytest.mark.parametrize("word", ["timing operations", "steps of 16 samples"], ids=["at the start", "in a run"])
def test_a_calibration_that_is_interrupted_ends_and_writes_nothing(tool: Tool, word: str) -> None:
    started = tool.start("calibrate", "--frameworks", "torch")
    started.wait_for(word)
    started.process.send_signal(signal.SIGINT)
    ended = started.end()
    assert ended.code == 130, ended.err
    # A run that failed would be tried again.
    assert "failed" not in ended.err
    assert "paceline-system.toml" not in tool.listing()
