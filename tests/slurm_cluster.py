"""A Slurm cluster for tests: private daemons, one slurmd in the namespace of each machine (see `namespaces.py`).

Needs root, and Debian's packages slurm-wlm and munge; nothing of theirs is started or changed on the computer itself.
"""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from namespaces import PATIENCE_SECONDS, NetworkOfMachines, machines, required_or_skipped

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol")
LAUNCHER_ADDRESS = "10.77.0.254"
CONFIG = """
ClusterName=tests
SlurmctldHost={host}({launcher})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmctldPort=6817
SlurmdPort=6818
KillWait=2
MinJobAge=2
SchedulerParameters=sched_interval=1
{nodes}
PartitionName=short Nodes={names} Default=YES MaxTime=00:30:00 State=UP
"""


def required_slurm_or_skipped() -> None:
    """Skips the test where there can be no cluster; fails it where `make test REQUIRE=machines` insists on one."""
    required_or_skipped()
    missing = [name for name in PROGRAMS if _program(name) is None]
    if not missing:
        return
    reason = f"Slurm's tests need {missing[0]} (packages slurm-wlm and munge)"
    if "machines" in os.environ.get("PACELINE_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@dataclass
class Cluster:
    """Nodes of Slurm, and the namespace in which its users are."""

    network: NetworkOfMachines
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Where Slurm's programs find the cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """A command of a user of the cluster, to its end."""
        return subprocess.run(
            self.command(*words), env={**self.environment, **more}, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=4 * PATIENCE_SECONDS,
        )  # fmt: skip

    def command(self, *words: str) -> list[str]:
        """A command where users of the cluster are."""
        return ["ip", "netns", "exec", self.network.launcher, *words]

    def jobs(self) -> list[str]:
        """Numbers of jobs that are waiting or running."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def processes(self) -> list[int]:
        """Processes of Paceline on all nodes and where its users are, requests for allocations among them."""
        return [pid for name in (*self.network.names, "bridge") for pid in self.network.processes(name)]


@contextmanager
def slurm_cluster(*names: str) -> Iterator[Cluster]:
    """A cluster whose nodes are idle, gone when the context ends."""
    with ExitStack() as stack:
        network = stack.enter_context(machines(*names))
        # In the folder of the network, whose name is short: names of sockets must be.
        cluster = Cluster(network, network.folder)
        _write_files(cluster)
        key, socket = cluster.folder / "munge.key", cluster.folder / "munge.socket"
        _start(
            stack, cluster.folder, "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}",
            f"--pid-file={cluster.folder}/munged.pid", f"--seed-file={cluster.folder}/munge.seed",
            f"--log-file={cluster.folder}/munged-own.log",
        )  # fmt: skip
        _wait(socket.exists, "munged listens")
        configured = ("-f", str(cluster.folder / "slurm.conf"))
        _start(stack, cluster.folder, *cluster.command(str(_program("slurmctld")), "-D", "-c", *configured))
        for name in names:
            # Not by `ip netns exec`, which hides the control groups that slurmd looks for.
            inside = ("nsenter", f"--net=/run/netns/{network.prefix}{name}")
            _start(
                stack, cluster.folder, *inside, str(_program("slurmd")), "-D", "-N", name, *configured,
                environment={"TMPDIR": str(network.folder / f"tmp-{name}")},
            )  # fmt: skip
        _wait(lambda: _idle(cluster) == len(names), "the nodes are idle")
        yield cluster


def _write_files(cluster: Cluster) -> None:
    key = cluster.folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    (cluster.folder / "state").mkdir()
    names = cluster.network.names
    for name in names:
        (cluster.folder / f"spool-{name}").mkdir()
    nodes = [
        f"NodeName={name} NodeHostname={os.uname().nodename} NodeAddr={cluster.network.address(name)} "
        f"CPUs={os.cpu_count()} RealMemory=100 State=UNKNOWN"
        for name in names
    ]
    text = CONFIG.format(
        host=os.uname().nodename, launcher=LAUNCHER_ADDRESS, folder=cluster.folder, nodes="\n".join(nodes),
        names=",".join(names),
    )  # fmt: skip
    (cluster.folder / "slurm.conf").write_text(text)


def _start(stack: ExitStack, folder: Path, *words: str, environment: dict[str, str] | None = None) -> None:
    """A daemon that ends with the context."""
    command = [str(_program(words[0]) or words[0]), *words[1:]]
    with (folder / f"daemon-{len(list(folder.glob('daemon-*')))}.log").open("wb") as log:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
        )

    def end() -> None:
        daemon.terminate()
        try:
            daemon.wait(timeout=5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    stack.callback(end)


def _idle(cluster: Cluster) -> int:
    return cluster.run("sinfo", "--noheader", "--Node", "--format=%t").stdout.split().count("idle")


def _wait(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.05)
