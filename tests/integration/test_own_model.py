"""A model file of the user's, trained: all that the file says is used, and its text is its identity."""

import pytest

from integration.conftest import SCRIPT, Tool
from paceline.record import Record

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

# Each function notes that it was called.
WHOLE = """
from pathlib import Path

import numpy as np
import torch
from torch import nn

from neighbour import WIDTH


def note(name):
    with Path(__file__).with_suffix(".txt").open("a") as notes:
        notes.write(name + "\\n")


def build():
    note("build")
    return nn.Linear(WIDTH, 1)


def data():
    note("data")
    inputs = np.random.default_rng(0).normal(size=(80, WIDTH))
    targets = inputs @ np.arange(WIDTH) / WIDTH
    return inputs[:64], targets[:64], inputs[64:], targets[64:]


def loss(outputs, targets):
    note("loss")
    return (outputs[:, 0] - targets).square().mean()


def optimizer(parameters):
    note("optimizer")
    return torch.optim.SGD(parameters, lr=0.1)
"""
SHADOWS = ("random.py", "types.py", "numpy.py")
COMMAND = ("run", "--model", "mine.py", "--strategy", "torch-single,torch-ddp", "--workers", "1,2",
           "--global-batch", "16", "--epochs", "2")  # fmt: skip


@pytest.fixture(scope="module")
def trained(shared_tool: Tool) -> list[Record]:
    """The file trained on one worker and on two, in a folder with files that are named like modules."""
    # Started afresh, as what is imported before cannot be imported wrongly any more.
    shared_tool.script = SCRIPT
    shared_tool.write("mine.py", WHOLE)
    shared_tool.write("neighbour.py", "WIDTH = 6\n")
    for name in SHADOWS:
        shared_tool.write(name, "raise RuntimeError('the wrong file was imported')\n")
    ended = shared_tool(*COMMAND)
    assert ended.code == 0, ended.err
    return [record for record in shared_tool.records() if record.ok]


def test_the_files_own_data_loss_and_optimizer_are_used(shared_tool: Tool, trained: list[Record]) -> None:
    notes = set((shared_tool.folder / "mine.txt").read_text().split())
    assert notes == {"build", "data", "loss", "optimizer"}
    assert all(record.spec.dataset == "own" for record in trained)
    assert all(record.epochs[0].samples == 64 for record in trained)
    # Six weights and a bias.
    assert {record.parameters for record in trained} == {7}


def test_the_model_learns_and_its_losses_do_not_depend_on_the_strategy(trained: list[Record]) -> None:
    first, *others = (record.losses for record in trained)
    assert len(trained) == 3
    assert first[-1] is not None and first[0] is not None and first[-1] < first[0]
    for losses in others:
        assert losses == pytest.approx(first, rel=1e-4)


def test_a_numbers_model_has_a_test_loss_and_no_accuracy(trained: list[Record]) -> None:
    for record in trained:
        assert record.epochs[-1].test_loss is not None
        assert record.epochs[-1].test_accuracy is None


def test_the_text_of_the_file_is_its_identity(shared_tool: Tool, trained: list[Record]) -> None:
    again = shared_tool(*COMMAND)
    shared_tool.write("mine.py", WHOLE.replace("lr=0.1", "lr=0.05"))
    changed = shared_tool(*COMMAND, "--dry-run")
    after = shared_tool(*COMMAND, "--strategy", "torch-single", "--workers", "1")
    assert "nothing to do: all 3 runs of command-line are stored" in again.err
    assert changed.out.splitlines()[-2] == "3 runs to make"
    assert "command-line: 1 run to make" in after.err
    keys = {record.key for record in shared_tool.records() if record.ok}
    assert len(keys) == 4
