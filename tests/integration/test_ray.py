"""Runs over the nodes of Ray, for real: a node in the network namespace of each machine. Needs Ray and root."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.conftest import PATIENCE_SECONDS, hear_interrupts, wait_until
from paceline.plan import PlannedRun, complete
from paceline.record import Record, Status
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.processes import stat_fields
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.strategies import strategy
from paceline.systems import local_system
from ray_cluster import RayNodes, ray_cluster, required_ray_or_skipped

LONG = ("--strategy", "fake", "--workers", "2", "--steps", "100000", "--knob", "real_time=true")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running() -> Iterator[RayNodes]:
    required_ray_or_skipped()
    with ray_cluster("left", "right") as nodes:
        yield nodes


@pytest.fixture
def nodes(running: RayNodes) -> Iterator[RayNodes]:
    yield running
    wait_until(lambda: running.agents() == [], "no agent is left on the nodes")


@pytest.fixture
def start(nodes: RayNodes, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a command of Paceline's on the cluster's head."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        command = nodes.command(sys.executable, "-m", "paceline", *words, "--db", str(tmp_path / "results.db"))
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(
                command, env=nodes.environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT,
                text=True, preexec_fn=hear_interrupts,  # noqa: PLW1509
            )
        )  # fmt: skip
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def workers(nodes: RayNodes) -> list[int]:
    lines = [(pid, Path(f"/proc/{pid}/cmdline")) for pid in nodes.agents()]
    return [pid for pid, line in lines if line.exists() and b"paceline.runs.worker" in line.read_bytes()]


def the_record(folder: Path) -> Record:
    with Store.open_existing(folder / "results.db") as store:
        (record,) = store.records(with_steps=True)
    return record


@pytest.mark.torch
def test_two_nodes_train_as_one_machine_does(
    nodes: RayNodes, start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, forking: ForkServers
) -> None:
    words = ("--strategy", "torch-ddp", "--workers", "2", "--global-batch", "64", "--steps", "5")
    launcher = start("run", "--on", f"ray:{nodes.address}", *words)
    said, _ = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert launcher.returncode == 0, said
    apart = the_record(tmp_path)
    assert [rank.machine for rank in apart.ranks] == ["10.77.0.1", "10.77.0.2"]
    spec = complete(RunSpec(strategy="torch-ddp", workers=2, global_batch=64, steps=5))
    here = LocalLauncher(forking.starter(strategy("torch-ddp")))
    together = launch(PlannedRun(spec, 0), "here", local_system(), lambda _event: None, launcher=here)
    assert apart.losses == pytest.approx(together.losses, rel=1e-6)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_nodes_are_left_empty_however_the_launcher_ends(
    nodes: RayNodes, start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, how: signal.Signals
) -> None:
    launcher = start("run", "--on", "ray", *LONG)
    wait_until(lambda: len(workers(nodes)) == 2 or launcher.poll() is not None, "workers on both nodes")
    launcher.send_signal(how)
    said, _ = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert launcher.returncode == (-signal.SIGKILL if how is signal.SIGKILL else 130), said
    if how is signal.SIGTERM:
        assert the_record(tmp_path).status is Status.INTERRUPTED


def test_a_killed_agent_is_a_result_with_its_node(
    nodes: RayNodes, start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    launcher = start("run", "--on", "ray", *LONG)
    wait_until(lambda: len(workers(nodes)) == 2 or launcher.poll() is not None, "workers on both nodes")
    (agent,) = [pid for pid in nodes.agents() if pid in nodes.network.processes("right") and is_agent(pid)]
    os.kill(agent, signal.SIGKILL)
    said, _ = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert launcher.returncode == 1, said
    assert str(the_record(tmp_path).reason).startswith("machine 10.77.0.2 is lost: its agent ended")


def is_agent(pid: int) -> bool:
    """Whether it is an agent, and not the guard that is its child."""
    dials, parents = (b"--dial" in Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, stat_fields(pid)[1]))
    return dials and not parents


def test_doctor_shows_the_nodes_and_a_cluster_that_is_not_there_is_said(nodes: RayNodes) -> None:
    def doctor(fleet: str) -> "subprocess.CompletedProcess[str]":
        words = nodes.command(sys.executable, "-m", "paceline", "doctor", "--on", fleet)
        return subprocess.run(
            words, env=nodes.environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

    shown = doctor("ray")
    assert shown.returncode == 0, shown.stderr
    assert "✓  10.77.0.1" in shown.stdout and "✓  10.77.0.2" in shown.stdout
    refused = doctor("ray:10.77.0.2:1")
    assert refused.returncode == 2, refused.stdout
    assert "no Ray cluster answers at 10.77.0.2:1" in " ".join(refused.stderr.split())


def test_a_cut_link_is_a_result_after_the_lease_and_the_node_empties_itself(
    nodes: RayNodes, start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    """The last one: Ray gives the node up, too."""
    launcher = start("run", "--on", "ray", *LONG)
    wait_until(lambda: len(workers(nodes)) == 2 or launcher.poll() is not None, "workers on both nodes")
    nodes.network.cut("right")
    try:
        wait_until(lambda: not workers(nodes), "both nodes end their workers")
        said, _ = launcher.communicate(timeout=PATIENCE_SECONDS)
    finally:
        nodes.network.mend("right")
    assert launcher.returncode == 1, said
    assert str(the_record(tmp_path).reason).startswith("machine 10.77.0.2 is lost: no word from its agent for 6 s")
