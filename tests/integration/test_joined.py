"""Runs in processes that something else started: the same losses as an ordinary run, and an end in order."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from integration.conftest import PATIENCE_SECONDS, wait_until
from paceline.plan import PlannedRun, complete
from paceline.record import Record, Status
from paceline.runs.agent.dial_back import Reception
from paceline.runs.joined import find_membership, meeting_of
from paceline.runs.launch import launch
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.strategies import strategy
from paceline.systems import local_system

TORCHRUN = Path(sysconfig.get_path("scripts")) / "torchrun"
MPIRUN = shutil.which("mpirun")
JOIN = ("-m", "paceline", "join")
SHORT = ("--strategy", "fake", "--steps", "3")
LONG = ("--strategy", "fake", "--steps", "100000", "--knob", "real_time=true")
# What a launcher around the tests may have left.
FOREIGN = ("RANK", "TORCHELASTIC", "SLURM_", "OMPI_", "PMI_", "TF_CONFIG", "MASTER_")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "TMPDIR": str(tmp_path), "COLUMNS": "200"}


class Job:
    """Processes of one job, each started with the variables that its launcher would set."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, variables: dict[str, str], *words: str) -> None:
        command = [sys.executable, *JOIN, *words]
        pipe = subprocess.PIPE
        self.processes.append(
            subprocess.Popen(
                command, cwd=self.folder, env={**self.environment, **variables}, text=True, stdout=pipe, stderr=pipe
            )
        )

    def end(self) -> list[tuple[int, str]]:
        """Exit codes and all that was printed."""
        outputs = [process.communicate(timeout=PATIENCE_SECONDS) for process in self.processes]
        return [
            (process.returncode, " ".join((out + err).split()))
            for process, (out, err) in zip(self.processes, outputs, strict=True)
        ]

    def family(self) -> list[psutil.Process]:
        """All processes of the job and what they started."""
        alive = [psutil.Process(process.pid) for process in self.processes if process.poll() is None]
        return [*alive, *(child for process in alive for child in process.children(recursive=True))]

    def workers(self) -> list[psutil.Process]:
        workers = []
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                workers += [process] if "paceline.runs.worker" in process.cmdline() else []
        return workers

    def folders(self) -> list[str]:
        """Temporary folders that were left."""
        return [path.name for path in self.folder.glob("paceline-*") if path.is_dir()]

    def record(self) -> Record:
        with Store.open_existing(self.folder / "paceline.db") as store:
            (record,) = store.records(with_steps=True)
        return record


@pytest.fixture
def job(tmp_path: Path, environment: dict[str, str]) -> Iterator[Job]:
    started = Job(tmp_path, environment)
    yield started
    for process in started.processes:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def free_port() -> int:
    """A port that was free a moment ago, and the one behind it most likely is, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def pytorch(rank: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def mpirun(rank: int, port: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": f"job-{port}"}  # fmt: skip


def tf_config(rank: int, port: int) -> dict[str, str]:
    cluster = {"chief": [f"localhost:{port}"], "worker": [f"localhost:{port + 1}"]}
    task = {"type": "worker" if rank else "chief", "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_under_torchrun_two_processes_train_as_an_ordinary_run_does(
    tmp_path: Path, environment: dict[str, str], forking: ForkServers
) -> None:
    words = [TORCHRUN, "--nproc-per-node", "2", *JOIN, "--workload", "mnist-small", "--strategy", "torch-ddp",
             "--global-batch", "64", "--steps", "5"]  # fmt: skip
    ended = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    # Rank 0 speaks for all.
    assert ended.stderr.count("1/1 ok mnist-small torch-ddp x2") == 1
    assert ended.stdout.count("Measured here: torch-ddp with 2 workers") == 1
    with Store.open_existing(tmp_path / "paceline.db") as store:
        (joined,) = store.records(with_steps=True)
    spec = complete(RunSpec(strategy="torch-ddp", workers=2, global_batch=64, steps=5))
    here = LocalLauncher(forking.starter(strategy("torch-ddp")))
    usual = launch(PlannedRun(spec, 0), "usual", local_system(), lambda _event: None, launcher=here)
    assert joined.losses == pytest.approx(usual.losses, rel=1e-6)
    assert joined.epochs[0].test_accuracy == usual.epochs[0].test_accuracy
    assert [rank.cores for rank in joined.ranks] == [rank.cores for rank in usual.ranks]
    assert joined.spec.machines == f"{os.uname().nodename}*2"
    assert [machine.name for machine in joined.machines] == [os.uname().nodename]
    assert "one_host" not in {finding.code for finding in joined.findings}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("variables", [pytorch, mpirun, tf_config], ids=["pytorch", "mpirun", "tf_config"])
def test_processes_find_each_other_by_what_their_launcher_says(
    job: Job, free_port: int, variables: Callable[[int, int], dict[str, str]]
) -> None:
    for rank in (1, 0):
        job.start(variables(rank, free_port), *SHORT)
    silent, leader = job.end()
    assert silent == (0, "")
    assert leader[0] == 0, leader[1]
    assert job.record().status is Status.OK
    assert [rank.rank for rank in job.record().ranks] == [0, 1]
    assert job.folders() == []


@pytest.mark.timeout(120)
@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun here (Debian: openmpi-bin)")
def test_under_mpirun_itself_two_processes_make_a_run(tmp_path: Path, environment: dict[str, str]) -> None:
    words = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, *JOIN, *SHORT]
    # Sockets of Open MPI have to have short names.
    ended = subprocess.run(
        words, cwd=tmp_path, env={**environment, "TMPDIR": "/tmp"}, capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    with Store.open_existing(tmp_path / "paceline.db") as store:
        (record,) = store.records(with_steps=True)
    assert record.spec.machines == f"{os.uname().nodename}*2"
    assert [rank.rank for rank in record.ranks] == [0, 1]


@pytest.mark.timeout(120)
def test_a_lost_process_is_a_result_with_its_name(job: Job, free_port: int) -> None:
    for rank in range(2):
        job.start(pytorch(rank, free_port), *LONG)
    wait_until(lambda: len(job.workers()) == 2, "both workers are there")
    job.processes[1].kill()
    codes = [code for code, _ in job.end()]
    assert codes == [1, -signal.SIGKILL]
    host = os.uname().nodename
    assert (job.record().status, job.record().reason) == (
        Status.FAILED, f"machine {host} is lost: its agent ended (process 1 of RANK and MASTER_ADDR)",
    )  # fmt: skip


@pytest.mark.timeout(120)
def test_a_signal_to_all_processes_is_an_interrupted_run(job: Job, free_port: int) -> None:
    for rank in range(2):
        job.start(pytorch(rank, free_port), *LONG)
    wait_until(lambda: len(job.workers()) == 2, "both workers are there")
    for process in reversed(job.processes):
        process.terminate()
    (leader, words), member = job.end()
    assert (leader, member) == (130, (0, ""))
    assert "interrupted; every finished run is stored" in words
    assert job.record().status is Status.INTERRUPTED
    assert job.folders() == []


@pytest.mark.timeout(120)
def test_without_the_first_process_there_is_no_record_and_the_others_end(job: Job, free_port: int) -> None:
    for rank in range(2):
        job.start(pytorch(rank, free_port), *LONG)
    wait_until(lambda: len(job.workers()) == 2, "both workers are there")
    family = job.family()
    job.processes[0].kill()
    job.end()
    wait_until(lambda: not any(process.is_running() for process in family), "nothing is left")
    with Store.open_existing(job.folder / "paceline.db") as store:
        assert store.records() == []


@pytest.mark.timeout(120)
def test_a_process_whose_first_one_gives_up_says_nothing_of_its_own(job: Job, free_port: int) -> None:
    meeting = meeting_of(find_membership(pytorch(1, free_port)), None, None, {})
    reception = Reception(meeting.host, 2, meeting.port, meeting.key)
    job.start(pytorch(1, free_port), *SHORT)
    # As where another process never came.
    reception.await_agent(1, PATIENCE_SECONDS).close()
    reception.close()
    assert job.end() == [(2, "")]
    assert job.folders() == []


@pytest.mark.timeout(120)
def test_processes_with_other_options_do_not_train_together(job: Job, free_port: int) -> None:
    job.start(pytorch(0, free_port), *SHORT)
    job.start(pytorch(1, free_port), "--strategy", "fake", "--steps", "4")
    (code, words), member = job.end()
    assert code == 2
    assert "rank 0 wants to run fake x2, which is not what this process was started with" in words
    assert member[1] == ""


@pytest.mark.timeout(120)
def test_wrong_input_is_said_once_and_ends_all_processes(job: Job, free_port: int) -> None:
    for rank in range(2):
        job.start(pytorch(rank, free_port), "--strategy", "torch-dd")
    (leader, words), member = job.end()
    assert (leader, member) == (2, (2, ""))
    assert "there is no strategy 'torch-dd'; did you mean 'torch-ddp'?" in words
