"""PyTorch runs under strain: killed and stopped workers, a hostile environment, a loss that blows up."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import workers_of
from paceline.api import run
from paceline.execute import Listener
from paceline.record import Record, Status
from paceline.runs.folder import RunFolder
from paceline.runs.wire import RunNews, StepEvent
from paceline.study import Study

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

# Far less than the hour that a hang would take, far more than a slow machine needs.
HANG_SECONDS = 150.0
# Longer than a transfer takes on a busy machine.
COLLECTIVE_SECONDS = 12.0
TINY = {
    "workload": "mnist-small",
    "dataset": "mnist-5k",
    "train_samples": 512,
    "global_batch": 64,
    "strategy": "torch-ddp",
    "workers": 2,
    "timeout_seconds": 3600.0,
}
ENDLESS = {**TINY, "epochs": 2000}


class AtFirstStep(Listener):
    """Does something to a run's workers once it is in the middle of its steps."""

    def __init__(self, act: Callable[[list[int]], None]) -> None:
        self._act = act
        self.acted_at: float | None = None

    def event(self, event: RunNews) -> None:
        if self.acted_at is None and isinstance(event, StepEvent):
            self.acted_at = time.monotonic()
            self._act(workers_of(os.getpid()))


@pytest.fixture
def results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new results file; afterwards nothing of the runs may be left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path / "results.db"
    assert workers_of(os.getpid()) == []
    assert list(tmp_path.glob("paceline-run-*")) == []


def hurt(results_file: Path, fields: dict[str, Any], act: Callable[[list[int]], None]) -> Record:
    """The record of a run whose workers something happens to; the run must end soon after."""
    listener = AtFirstStep(act)
    (record,) = run(Study(fixed=fields), results_file, listener=listener).records
    assert listener.acted_at is not None, record.reason
    assert time.monotonic() - listener.acted_at < HANG_SECONDS
    return record


def test_a_worker_killed_in_the_middle_of_a_step_fails_the_run_and_is_named(results_file: Path) -> None:
    record = hurt(results_file, ENDLESS, lambda pids: os.kill(pids[1], signal.SIGKILL))
    assert record.status is Status.FAILED
    assert record.reason == "rank 1 (worker) was killed by SIGKILL"


def test_a_worker_that_stands_still_holds_the_others_no_longer_than_the_collective_timeout(results_file: Path) -> None:
    fields = {**ENDLESS, "collective_timeout_seconds": COLLECTIVE_SECONDS}
    record = hurt(results_file, fields, lambda pids: os.kill(pids[1], signal.SIGSTOP))
    assert record.status is Status.FAILED
    assert record.reason is not None
    assert record.reason.startswith("rank 0 (worker): ")


@pytest.mark.parametrize("repeats", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_runs_end_cleanly_also_where_another_launcher_left_its_variables(
    results_file: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    logs: list[str] = []

    def keep(folder: RunFolder, rank: int) -> str:
        logs.append(folder.log(rank).read_text())
        return ""

    monkeypatch.setattr(RunFolder, "log_tail", keep)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("RANK", "7")
        monkeypatch.setenv("LOCAL_RANK", "7")
        monkeypatch.setenv("WORLD_SIZE", "8")
        monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
        results = run(Study(repeats=repeats, fixed={**TINY, "steps": 2}), results_file)
    assert [record.status for record in results.records] == [Status.OK] * repeats
    assert len(logs) == 2 * repeats
    assert not [log for log in logs if "terminate called" in log or "Traceback" in log]


def test_a_loss_that_blows_up_is_a_finding_and_the_run_is_kept(results_file: Path) -> None:
    fields = {**TINY, "strategy": "torch-single", "workers": 1, "steps": 4, "optimizer": {"name": "sgd", "lr": 1e30}}
    (record,) = run(Study(fixed=fields), results_file).records
    assert record.status is Status.OK
    assert "loss_not_finite" in {finding.code for finding in record.findings}
    assert None in record.losses
    assert len(record.step_seconds[0]) == 4
