"""Runs over the nodes of Slurm, for real: private daemons, and a slurmd in the network namespace of each node."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.conftest import PATIENCE_SECONDS, wait_until
from paceline.plan import PlannedRun, complete
from paceline.record import Record, Status
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.strategies import strategy
from paceline.systems import local_system
from slurm_cluster import Cluster, required_slurm_or_skipped, slurm_cluster

NAMES = ("left", "right")
PACELINE = (sys.executable, "-m", "paceline")
LONG = ("--strategy", "fake", "--workers", "2", "--steps", "100000", "--knob", "real_time=true")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    required_slurm_or_skipped()
    with slurm_cluster(*NAMES) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    wait_until(lambda: running.jobs() == [], "no job is left")
    wait_until(lambda: running.processes() == [], "no process is left")


@pytest.fixture
def started(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """A command of Paceline's that has workers on both nodes."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        command = cluster.command(*words, "--db", str(tmp_path / "results.db"))
        environment = {**cluster.environment, "COLUMNS": "200"}
        processes.append(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )
        )  # fmt: skip
        wait_until(lambda: len(workers(cluster)) == 2 or processes[0].poll() is not None, "workers on both nodes")
        return processes[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def workers(cluster: Cluster) -> list[int]:
    lines = [(pid, Path(f"/proc/{pid}/cmdline")) for pid in cluster.processes()]
    return [pid for pid, line in lines if line.exists() and b"paceline.runs.worker" in line.read_bytes()]


def records(folder: Path) -> list[Record]:
    with Store.open_existing(folder / "results.db") as store:
        return store.records(with_steps=True)


@pytest.mark.torch
def test_in_an_allocation_two_nodes_train_as_one_machine_does(
    cluster: Cluster, tmp_path: Path, forking: ForkServers
) -> None:
    words = (
        "run",
        "--on",
        "slurm",
        "--strategy",
        "torch-ddp",
        "--workers",
        "2",
        "--global-batch",
        "64",
        "--steps",
        "5",
    )
    ended = cluster.run("salloc", "--quiet", "--nodes=2", *PACELINE, *words, "--db", str(tmp_path / "results.db"))
    assert ended.returncode == 0, ended.stderr
    (apart,) = records(tmp_path)
    assert [(rank.machine, machine.address) for rank, machine in zip(apart.ranks, apart.machines, strict=True)] == [
        ("left", "10.77.0.1"),
        ("right", "10.77.0.2"),
    ]
    spec = complete(RunSpec(strategy="torch-ddp", workers=2, global_batch=64, steps=5))
    here = LocalLauncher(forking.starter(strategy("torch-ddp")))
    together = launch(PlannedRun(spec, 0), "here", local_system(), lambda _event: None, launcher=here)
    assert apart.losses == pytest.approx(together.losses, rel=1e-6)


def test_a_cancelled_job_is_a_result_and_leaves_nothing(
    cluster: Cluster, started: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    launcher = started(*PACELINE, "run", "--on", "slurm:nodes=2,time=00:05:00,partition=short", *LONG)
    (job,) = cluster.jobs()
    assert cluster.run("scancel", job).returncode == 0
    said, _ = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert launcher.returncode == 1, said
    (record,) = records(tmp_path)
    assert record.status is Status.FAILED
    assert re.match(r"machine (left|right) is lost: its agent ended", str(record.reason)), record.reason


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_an_allocation_ends_with_its_launcher(
    cluster: Cluster, started: Callable[..., "subprocess.Popen[str]"], how: signal.Signals
) -> None:
    launcher = started(*PACELINE, "run", "--on", "slurm:nodes=2", *LONG)
    assert len(cluster.jobs()) == 1
    os.kill(launcher.pid, how)
    launcher.communicate(timeout=PATIENCE_SECONDS)


def test_a_request_that_waits_is_withdrawn_when_its_launcher_is_killed(cluster: Cluster) -> None:
    def start(*words: str) -> "subprocess.Popen[bytes]":
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            cluster.command(*words), env=cluster.environment, stdin=nothing, stdout=nothing, stderr=nothing
        )

    holder = start("salloc", "--nodes=2", "--exclusive", "--kill-command=TERM", "sleep", "100")
    waiting = None
    try:
        wait_until(lambda: len(cluster.jobs()) == 1, "the nodes are taken")
        waiting = start(*PACELINE, "doctor", "--on", "slurm:nodes=2")
        wait_until(lambda: len(cluster.jobs()) == 2, "a second job waits")
        waiting.kill()
        wait_until(lambda: len(cluster.jobs()) == 1, "it is withdrawn")
    finally:
        cluster.run("scancel", *cluster.jobs())
        for process in (holder, *([waiting] if waiting is not None else [])):
            process.wait(PATIENCE_SECONDS)


def test_tasks_of_srun_join(cluster: Cluster, tmp_path: Path) -> None:
    words = ("join", "--host", "10.77.0.1", "--strategy", "fake", "--steps", "3", "--db", str(tmp_path / "results.db"))
    ended = cluster.run("srun", "--nodes=2", "--ntasks-per-node=1", *PACELINE, *words)
    assert ended.returncode == 0, ended.stderr
    (record,) = records(tmp_path)
    assert (record.status, len(record.ranks)) == (Status.OK, 2)
    assert ended.stderr.count("1/1 ok") == 1


def test_doctor_shows_the_nodes_and_what_slurm_refuses_is_said(cluster: Cluster) -> None:
    shown = cluster.run(*PACELINE, "doctor", "--on", "slurm:nodes=2", COLUMNS="200")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"✓ +left +10\.77\.0\.1 .*right: [0-9.]+ [GM]bit/s, ", shown.stdout), shown.stdout
    refused = cluster.run(*PACELINE, "doctor", "--on", "slurm:nodes=2,partition=nowhere", COLUMNS="200")
    assert refused.returncode == 2
    assert "Slurm gave no allocation: salloc: error: invalid partition specified: nowhere" in refused.stderr
    for where in ("", ",partition=short"):
        refused = cluster.run(*PACELINE, "doctor", "--on", f"slurm:nodes=9{where}", COLUMNS="200")
        assert refused.returncode == 2
        assert "--on slurm asks for 9 nodes, and partition short has 2; ask for fewer" in refused.stderr
