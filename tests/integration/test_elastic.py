"""Workers that are killed and join, for real: training goes on or says why not, and nothing is left running."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration.conftest import PATIENCE_SECONDS, wait_until
from paceline.analysis.membership import ChangeCost, summarise_membership
from paceline.contract.context import LOOPBACK
from paceline.plan import PlannedRun, complete
from paceline.record import Record, Status
from paceline.runs.elastic.agent import AGENT_PID
from paceline.runs.elastic.agents import MEMBER, PIDS
from paceline.runs.elastic.launch import launch_elastic
from paceline.runs.elastic.progress import ProgressReader
from paceline.runs.folder import RunFolder
from paceline.runs.launch import schedule
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.processes import CODE_FAILED, held_port
from paceline.runs.starters import ForkServers
from paceline.runs.wire import RankError, WorkerOrders
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

PATIENCE = {"timeout_seconds": 280.0, "collective_timeout_seconds": 240.0}
# Long enough for a newcomer that imports its framework on a slow and busy machine.
STEPS = 3000
SMALL = {"workload": "mnist-small", "dataset": "mnist-5k", "workers": 2, "global_batch": 128, "checkpoint_every": 40}


def spec_of(name: str, membership: str, **fields: Any) -> RunSpec:
    values = {**SMALL, "strategy": name, "membership": membership, "steps": STEPS, **PATIENCE, **fields}
    return complete(RunSpec.parse(values, "test"))


def processes_of(folder: Path) -> list[str]:
    """Processes that were started for runs with that temporary folder."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


@pytest.fixture
def changed(forking: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a run with changes in a temporary folder of its own, of which nothing may be left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(spec: RunSpec) -> Record:
        launcher = LocalLauncher(forking.starter(strategy(spec.strategy)))
        record = launch_elastic(PlannedRun(spec, 0), "test", local_system(), lambda _event: None, launcher=launcher)
        assert list(tmp_path.iterdir()) == []
        assert processes_of(tmp_path) == []
        return record

    return run


def costs(record: Record) -> tuple[ChangeCost, ...]:
    assert record.ok, f"{record.reason}\n{record.log_tail}"
    summary = summarise_membership([record])
    assert summary is not None
    return summary.changes


@pytest.mark.torch
def test_downpour_goes_on_without_a_worker(changed: Any) -> None:
    record = changed(spec_of("torch-downpour", "leave:40", steps=200))
    (leave,) = costs(record)
    assert leave.went_on
    assert {point.trained_by for point in record.progress[-100:]} == {(0,)}
    assert [point.step for point in record.progress if point.part == 0] == list(range(1, 201))
    # Nobody takes over what the lost worker would have trained on.
    trained = sum(point.samples for point in record.progress)
    assert leave.samples_left_out == 200 * 128 - trained > 0
    assert record.losses[-1] < record.losses[0]
    (server,) = [rank for rank in record.ranks if rank.role == "server"]
    assert server.details["workers_lost"] == 1


@pytest.mark.torch
def test_a_worker_that_joins_too_late_is_a_result_with_a_reason(changed: Any) -> None:
    record = changed(spec_of("torch-downpour", "leave:5,join:10", steps=12))
    assert record.status is Status.FAILED
    assert record.reason == "the run was over before the worker that joined could train; give more steps"
    assert [change.kind for change in record.changes] == ["leave", "join"]


@pytest.mark.torch
def test_agents_that_do_not_come_to_an_end_are_ended_with_their_workers(changed: Any) -> None:
    record = changed(spec_of("torch-ddp", "leave:99999", steps=100_000, timeout_seconds=12.0))
    assert record.status is Status.TIMED_OUT
    assert record.reason == "did not end within 12 s (timeout_seconds)"


@pytest.mark.soak
@pytest.mark.torch
def test_agents_go_on_from_the_last_checkpoint(changed: Any) -> None:
    record = changed(spec_of("torch-ddp", "leave:70,join:200"))
    leave, join = costs(record)
    # 30 steps after the checkpoint of step 40, or a few more until the kill came.
    assert leave.samples_again >= 30 * 128
    assert leave.samples_again < 40 * 128
    assert leave.samples_left_out == join.samples_left_out == 0
    assert join.until_training_seconds is not None
    assert leave.went_on and join.went_on
    assert sorted({point.step for point in record.progress}) == list(range(1, STEPS + 1))
    assert [point.trained_by for point in record.progress if point.step in (50, 150, STEPS)][-1] == (0, 1)


@pytest.mark.soak
@pytest.mark.torch
def test_steps_after_a_restart_are_those_of_a_run_that_was_never_stopped(changed: Any) -> None:
    record = changed(spec_of("torch-ddp", "leave:70", steps=120))
    again = {point.step: point.loss for point in record.progress}
    first = {point.step: point.loss for point in reversed(record.progress)}
    assert len(record.progress) > 120
    # The first worker's loss is that of its half of the batch before, and of all of it after.
    undisturbed = changed(spec_of("torch-ddp", "leave:119", steps=120))
    alone = [point.loss for point in undisturbed.progress if point.step <= 70]
    assert [first[step] for step in range(1, 71)] == pytest.approx(alone, rel=1e-4)
    assert again[120] < again[41]


@pytest.mark.soak
@pytest.mark.torch
def test_of_two_groups_that_train_the_same_run_the_first_one_stops(tmp_path: Path) -> None:
    spec = spec_of("torch-ddp", "leave:99999", steps=100_000)
    processes = LocalLauncher().lay_out(spec, local_system())
    folder, saves = RunFolder(tmp_path), tmp_path / "saves"
    for inside in (saves, tmp_path / PIDS):
        inside.mkdir()
    folder.write_orders(
        WorkerOrders(spec=spec, processes=processes, schedule=schedule(spec), host=LOOPBACK, port=1, checkpoints=saves)
    )

    def lead_a_group() -> "subprocess.Popen[bytes]":
        with held_port(LOOPBACK) as held:
            port = held.getsockname()[1]
        group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MEMBER, str(tmp_path), "0"],
            env={**os.environ, **group, AGENT_PID: str(os.getpid())}, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    groups = [lead_a_group()]
    try:
        wait_until(lambda: ProgressReader(tmp_path).look() > 80, "the first group trains and has saved")
        groups.append(lead_a_group())
        assert groups[0].wait(PATIENCE_SECONDS) == CODE_FAILED
        report = folder.read_report(0)
        assert isinstance(report, RankError)
        assert report.text == "another group of workers has begun to train this run; this one has to stop"
        reached = ProgressReader(tmp_path).look()
        wait_until(lambda: ProgressReader(tmp_path).look() > reached, "the second one goes on")
        assert groups[1].poll() is None
    finally:
        for group in groups:
            group.kill()
            group.wait()


@pytest.mark.soak
@pytest.mark.torch
def test_downpour_takes_a_newcomer_in(changed: Any) -> None:
    leave, join = costs(changed(spec_of("torch-downpour", "leave:70,join:200")))
    assert leave.went_on and join.went_on
    assert join.until_training_seconds is not None
    assert leave.samples_again == join.samples_again == 0


@pytest.mark.soak
@pytest.mark.tensorflow
def test_servers_of_tensorflow_lose_no_samples(changed: Any) -> None:
    record = changed(spec_of("tf-ps", "leave:70,join:200"))
    leave, join = costs(record)
    assert leave.went_on and join.went_on
    assert leave.samples_left_out == join.samples_left_out == 0
    assert join.until_training_seconds is not None
    # At most the share of the lost worker is trained on twice.
    assert leave.samples_again in (0, 64)
    assert any(1 in point.trained_by for point in record.progress if point.seconds > record.changes[1].seconds)
