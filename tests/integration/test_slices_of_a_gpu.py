"""What only a real GPU can show: slices are slices, breakdowns of kernels are true, nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from integration.traced import LATE
from paceline.breakdown import PARTS
from paceline.plan import PlannedRun, complete
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.slices import sweep
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategies
from paceline.systems import local_system
from paceline.systems.nccl import nccl_of, slice_link, version_text

HERE = local_system()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(HERE.no_slices is not None, reason=f"a GPU cannot be cut here: {HERE.no_slices}"),
]
LATE_SECONDS = 0.05
# Half or less of what slices of an H200 moved through its memory; sockets carry 2 to 4 GB/s.
LEAST_FAST = {2: 80e9, 4: 50e9, 8: 20e9}
PAYLOAD_BYTES = 64 << 20
# A model that wants as much memory as half of the GPU for a moment.
WIDE = """
import torch
from torch import nn

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, x):
        return self.layer(x.flatten(1)) + torch.ones({elements}, device=x.device)[0]

def build():
    return Wide()
"""
SLICED = {"device": "cuda-slice", "slices": 4, "global_batch": 256, "train_samples": 2048}


def run(**fields: Any) -> Record:
    spec = complete(RunSpec.model_validate({**SLICED, "steps": 8, **fields}))
    record = launch(PlannedRun(spec, 0), "slices", HERE, lambda _event: None)
    assert record.ok, f"{record.reason}\n{record.log_tail}"
    return record


def link(ranks: int, transport: str) -> dict[str, Any]:
    """What slices say of the link between them."""
    script = Path(__file__).parent / "slice_bandwidth.py"
    command = [sys.executable, str(script), str(ranks), transport]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def skip_without_fast_link() -> None:
    found = slice_link(nccl_of("torch"), "auto")
    if found.transport != "p2p":
        pytest.skip(f"slices talk over sockets here: {found.reason}")


def daemons() -> str:
    return subprocess.run(["ps", "-eo", "stat,comm"], capture_output=True, text=True, check=True).stdout


def running_daemons() -> list[str]:
    return [line for line in daemons().splitlines() if "nvidia-cuda-mps" in line and not line.startswith("Z")]


TRACED = [
    name
    for name, one in strategies().items()
    if one.framework in ("torch", "jax") and "cuda-slice" in one.needs.devices and name not in ("torch-sandblaster",)
]


@pytest.mark.parametrize("name", TRACED)
def test_the_breakdown_of_a_run_on_slices_adds_up(name: str) -> None:
    chosen = strategies()[name]
    fields = {"strategy": name, "workers": chosen.needs.fixed_workers or 2, "instrumented": True}
    spec = complete(RunSpec.model_validate({**SLICED, "steps": 8, **fields}))
    if not chosen.needs.can_be_instrumented(spec):
        pytest.skip(f"{name} cannot be taken apart")
    record = run(**fields)
    trained = [part for part in record.breakdown if part.forward + part.backward > 0]
    assert trained
    for part in trained:
        assert sum(getattr(part, each) for each in PARTS) == pytest.approx(part.step, rel=0.02)
        assert min(getattr(part, each) for each in PARTS) >= -0.02 * part.step


def test_a_late_rank_is_waiting_in_the_kernels_of_the_other(tmp_path: Path) -> None:
    model, found = tmp_path / "late.py", {}
    for late in (0.0, LATE_SECONDS):
        model.write_text(LATE.format(late=late))
        found[late] = run(
            strategy="torch-ddp", workers=2, instrumented=True, model=ModelFile.from_text(str(model)),
            dataset="mnist-5k",
        ).breakdown  # fmt: skip
    calm, held_up = found[0.0][0], found[LATE_SECONDS][0]
    assert held_up.waiting - calm.waiting == pytest.approx(LATE_SECONDS, rel=0.2)
    assert held_up.exposed - calm.exposed < 0.2 * LATE_SECONDS


def test_a_quarter_of_the_gpu_is_slower_than_all_of_it() -> None:
    whole, slice_of_it = (
        run(workload="mnist-large", strategy="torch-single", steps=None, epochs=3, **fields)
        for fields in ({"slices": 1}, {"slices": 4})
    )
    # The host launches steps ahead of the GPU, so only whole epochs tell.
    assert slice_of_it.epochs[-1].seconds > 1.3 * whole.epochs[-1].seconds


@pytest.mark.parametrize("ranks", LEAST_FAST)
def test_slices_talk_through_the_memory_of_the_gpu(ranks: int) -> None:
    skip_without_fast_link()
    found = link(ranks, "auto")
    assert found["slice_transport"] == "p2p"
    assert found["bytes_per_second"][str(PAYLOAD_BYTES)] > LEAST_FAST[ranks]


def test_sockets_that_were_asked_for_are_a_slow_link() -> None:
    found = link(2, "socket")
    assert found["slice_transport"] == "socket"
    assert 0 < found["bytes_per_second"][str(PAYLOAD_BYTES)] < LEAST_FAST[2]


def test_the_record_says_which_nccl_carried_it_and_how() -> None:
    loaded = nccl_of("torch")
    assert loaded is not None
    expected = slice_link(loaded, "auto")
    record = run(strategy="torch-ddp", workers=2)
    for rank in record.ranks:
        assert rank.details["nccl_version"] == version_text(loaded)
        assert rank.details["slice_transport"] == expected.transport
    found = "slices_over_sockets" in {finding.code for finding in record.findings}
    assert found is (expected.transport == "socket")


def test_more_memory_than_a_slice_has_is_out_of_memory(tmp_path: Path) -> None:
    model = tmp_path / "wide.py"
    elements = HERE.gpus[0].memory_bytes // 4 // 2
    model.write_text(WIDE.format(elements=elements))
    spec = complete(
        RunSpec.model_validate({**SLICED, "steps": 2, "model": ModelFile.from_text(str(model)), "dataset": "mnist-5k"})
    )
    record = launch(PlannedRun(spec, 0), "slices", HERE, lambda _event: None)
    assert record.status == "out_of_memory", record.reason


def test_no_daemon_outlives_a_run() -> None:
    run(strategy="torch-ddp", workers=2)
    assert running_daemons() == []


def test_the_daemon_of_a_killed_tool_is_taken_down_by_the_next(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "paceline", "run", "--strategy", "torch-ddp", "--workers", "2", "--device", "cuda-slice",
        "--epochs", "500", "--db", str(tmp_path / "killed.db"),
    ]  # fmt: skip
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    until = time.monotonic() + 60
    while not running_daemons() and time.monotonic() < until:
        time.sleep(0.1)
    assert running_daemons()
    tool.send_signal(signal.SIGKILL)
    tool.wait()
    sweep()
    assert running_daemons() == []
