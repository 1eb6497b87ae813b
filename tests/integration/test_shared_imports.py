"""Runs that share one import of a framework: faster to start, and nothing passes from one to the next."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.plan import PlannedRun, complete
from paceline.record import Record
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers, Starter
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategies, strategy
from paceline.systems import local_system

SINGLES = [
    pytest.param(chosen.name, id=chosen.name, marks=getattr(pytest.mark, chosen.framework))
    for chosen in strategies().values()
    if chosen.framework in local_system().frameworks and chosen.family == "single"
]


def trained(name: str, start: Starter, **fields: Any) -> Record:
    usual = {"strategy": name, "global_batch": 32, "train_samples": 256, "steps": 6}
    spec = complete(RunSpec.model_validate({**usual, **fields}))
    launcher = LocalLauncher(start)
    record = launch(PlannedRun(spec, 0), "forks", local_system(), lambda _event: None, launcher=launcher)
    assert record.ok, f"{record.reason}\n{record.log_tail}"
    return record


@functools.cache
def started_afresh(name: str) -> Record:
    """A run in a process that imports all by itself."""
    return trained(name, Starter())


@pytest.mark.parametrize("name", SINGLES)
def test_nothing_passes_from_a_run_to_the_next(name: str, forking: ForkServers) -> None:
    alone, start = started_afresh(name), forking.starter(strategy(name))
    before = trained(name, start)
    other = trained(name, start, seed=7, global_batch=64, optimizer={"name": "sgd", "lr": 0.1}, workload="mlp")
    after = trained(name, start)
    # The same bits, not nearly the same: threads, random states and settings are those of a fresh process.
    assert before.losses == after.losses == alone.losses
    assert other.losses != alone.losses


@pytest.mark.parametrize("name", SINGLES)
def test_a_shared_import_is_made_once_and_the_record_says_so(name: str, forking: ForkServers) -> None:
    alone, start = started_afresh(name), forking.starter(strategy(name))
    shared = trained(name, start), trained(name, start)
    assert alone.startup is not None and not alone.startup.forked
    first, second = (record.startup for record in shared)
    assert first is not None and first.forked
    assert second is not None and second.forked
    # One import, so the same number twice: it stays part of the start-up that is reported, whoever waited for it.
    assert first.import_seconds > 0.1
    # The rest is what each imports by itself, which takes longer on a busy machine.
    assert second.import_seconds == pytest.approx(first.import_seconds, rel=0.5)


# Says, while a run is opened, how many objects Python no longer looks through for garbage.
COUNTING = """
import gc
from pathlib import Path

from torch import nn


def build():
    with Path(__file__).with_suffix(".txt").open("a") as notes:
        notes.write(f"{gc.get_freeze_count()}\\n")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""


@pytest.mark.torch
def test_garbage_is_not_looked_for_among_what_a_framework_imported(tmp_path: Path, forking: ForkServers) -> None:
    file = tmp_path / "counting.py"
    file.write_text(COUNTING)
    start, model = forking.starter(strategy("torch-single")), ModelFile.from_text(f"{file}:build")
    trained("torch-single", start, model=model, dataset="mnist-5k")
    # All of PyTorch: a quarter of a second for each run that lets go of its model. One more process only looks at it.
    assert max(map(int, file.with_suffix(".txt").read_text().split())) > 100_000


@pytest.mark.torch
def test_fsdp_does_not_import_optimizers_that_only_zero_uses() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    asked = "import sys, paceline.frameworks.torch.sharded; print('torch.distributed.optim' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"
