"""`paceline run train.py`: a user's script as it is, its samples/s as it prints them, and its failures as results."""

import re
from pathlib import Path

import pytest

from integration.conftest import Tool
from paceline.breakdown import PARTS

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


AS_TORCHRUN = """
import os, sys, threading, atexit
import numpy as np
import neighbour
import paceline
from torch.distributed import TCPStore, is_torchelastic_launched

def late():
    print("joined")

assert __name__ == "__main__" and is_torchelastic_launched()
rank, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
assert os.environ["GROUP_WORLD_SIZE"] == "1"
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
store.set(f"drawn {rank}", str(np.random.random()))
drawn = [store.get(f"drawn {other}") for other in range(world)]
assert len(set(drawn)) == world, "every process draws for itself"
print(os.getcwd(), neighbour.WORD, os.environ["CUDA_VISIBLE_DEVICES"] == "")
for _ in range(3):
    with paceline.step(samples=1):
        pass
threading.Timer(0.2, late).start()
atexit.register(print, "cleaned up")
sys.exit(0)
"""


@pytest.mark.torch
def test_a_script_finds_what_torchrun_and_python_would_give_it(tool: Tool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tool.folder / "elsewhere"
    folder.mkdir()
    (folder / "neighbour.py").write_text("WORD = 'beside'")
    (folder / "train.py").write_text(AS_TORCHRUN)
    ended = tool("run", "elsewhere/train.py", "--workers", "2")
    assert ended.code == 0, ended.said + str(tool.records()[0].log_tail)
    (record,) = tool.records()
    assert record.log_tail.split() == [str(tool.folder), "beside", "True", "joined", "cleaned", "up"]


SLOW = """
import time, sys, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(8)

class Sleepy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, inputs):
        time.sleep(0.03 + 0.05 * dist.get_rank())
        return self.layer(inputs)

class Slowly(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            closure()
        time.sleep(0.01)
        return super().step()

dist.init_process_group("gloo")
assert dist.get_backend() == "gloo"
model = nn.parallel.DistributedDataParallel(Sleepy())
optimizer = Slowly(model.parameters(), lr=0.1)
for inputs in DataLoader(Slow()):
    def both():
        optimizer.zero_grad()
        model(inputs).sum().backward()
    if "closure" in sys.argv:
        optimizer.step(both)
    else:
        both()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("closure", [False, True])
def test_a_breakdown_finds_the_parts_of_a_script_that_says_nothing(tool: Tool, closure: bool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    script = tool.write("slow.py", SLOW)
    ended = tool("run", script, "--workers", "2", "--breakdown", *(("--", "closure") if closure else ()))
    assert ended.code == 0, ended.said
    (record,) = [record for record in tool.records() if record.spec.instrumented]
    first, late = record.breakdown
    for rank in (first, late):
        assert rank.input >= 0.02 and rank.optimizer >= 0.01
        # A bias and weights of four bytes.
        assert rank.sent_bytes == (8 + 64) * 4
        assert sum(getattr(rank, part) for part in PARTS) == pytest.approx(rank.step)
        assert rank.other >= 0
    assert first.forward >= 0.03 and late.forward >= 0.08
    # While the other is in its late forward pass, the first waits in its backward pass.
    assert first.waiting > late.waiting
    assert "ms of a step" in ended.said


def test_scripts_of_other_frameworks_are_run_without_a_breakdown(tool: Tool) -> None:
    text = "import paceline\nif False:\n    import jax\nfor _ in range(3):\n    with paceline.step():\n        pass\n"
    ended = tool("run", tool.write("of_jax.py", text), "--breakdown")
    assert ended.code == 0
    assert "no breakdown of script x1: a breakdown of a script is one of PyTorch's parts of its steps" in ended.said
    assert "of_jax.py uses jax" in ended.said
    (record,) = tool.records()
    assert not record.spec.instrumented


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print('nothing')", "no step was seen in bad.py"),
        ("raise KeyError('lost')", "rank 0 (worker): KeyError: 'lost'"),
        ("raise SystemExit(3)", "bad.py ended with exit code 3"),
        ("import os; os._exit(0)", "exit code 0 and no result; its steps are read when it returns"),
    ],
)
def test_a_script_that_fails_is_a_failed_run_with_a_reason(tool: Tool, text: str, reason: str) -> None:
    assert tool("run", tool.write("bad.py", text)).code == 1
    (record,) = tool.records()
    assert reason in str(record.reason)
    assert "paceline" not in record.log_tail, "the script's own lines alone"
    assert ("KeyError: 'lost'" in record.log_tail) == ("KeyError" in text)


def test_what_the_script_decides_is_refused(tool: Tool) -> None:
    script = tool.write("some.py", "")
    for words, complaint in (
        (("--strategy", "torch-ddp"), "decides that itself"),
        (("--epochs", "2"), "epochs was given, and the script decides that itself"),
    ):
        ended = tool("run", script, *words)
        assert ended.code == 2 and complaint in " ".join(ended.said.split())
    assert "there is no script" in tool("run", "absent.py").said
    broken = tool("run", tool.write("broken.py", "\ndef train(:\n"))
    assert broken.code == 2 and "broken.py is no Python that could run: invalid syntax in line 2" in broken.said
    assert "arguments of a script" in " ".join(tool("run", "quick", "--", "--lr").said.split())
