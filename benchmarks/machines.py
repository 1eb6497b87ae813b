"""What agents cost: runs over two machines by ssh, against the same processes in the same namespaces without agents.

`python benchmarks/machines.py [ROUNDS]`, as root with iproute2 and openssh-server. Both ways alternate; printed are
ratios of medians over the rounds: steady samples/s, CPU seconds of a step, and seconds around the steps.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paceline.contract.context import Place, Process
from paceline.fleet import parse_fleet
from paceline.plan import PlannedRun, complete
from paceline.record import Record
from paceline.runs.fleets import open_machines
from paceline.runs.launch import launch
from paceline.runs.launchers import Launcher
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import NewProcess, RunProcess, Starter
from paceline.spec import RunSpec
from paceline.systems import System, local_system

# The machines of tests: network namespaces with an sshd each.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
namespaces: Any = import_module("namespaces")
NAMES = ("left", "right")
ROUNDS = 5
SPEC = RunSpec(strategy="torch-ddp", workers=2, global_batch=512, epochs=6)


@dataclass(frozen=True)
class InNamespaces(Starter):
    """Starts each rank as a new interpreter in the namespace of its machine."""

    network: Any

    def start(self, process: NewProcess) -> RunProcess:
        """The same command as for a process of this machine, in another namespace."""
        words = [str(process.folder), *map(str, (process.rank, *process.fds, os.getpid()))]
        command = [sys.executable, "-P", "-m", "paceline.runs.worker", *words]
        with process.log.open("wb") as log:
            return subprocess.Popen(
                self.network.inside(NAMES[process.rank], *command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # Kernels share cores out by session, and sshd gives each agent one of its own.
                env=process.environment, pass_fds=process.fds, start_new_session=True,
            )  # fmt: skip


@dataclass(frozen=True)
class NamespaceLauncher(LocalLauncher):
    """The launcher of this machine, for ranks at the addresses of the namespaces."""

    network: Any = None

    def lay_out(self, spec: RunSpec, system: System) -> tuple[Process, ...]:
        """The usual cores, with the addresses of the namespaces."""
        places = [Place(0, name, self.network.address(name), "eth0") for name in NAMES]
        return tuple(
            replace(process, place=place) for process, place in zip(super().lay_out(spec, system), places, strict=True)
        )


@contextmanager
def inside(network: Any, name: str) -> Iterator[None]:
    """Puts the thread into the network of a machine, so that the meeting port is bound there."""
    libc = ctypes.CDLL(None)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{network.prefix}{name}", os.O_RDONLY)
    assert libc.setns(there, 0) == 0
    try:
        yield
    finally:
        assert libc.setns(home, 0) == 0
        os.close(home)
        os.close(there)


def timed_run(launcher: Launcher, system: System, names: str) -> tuple[Record, float]:
    """A record, and the seconds from the order to the end of the first step, without the import."""
    began = time.perf_counter()
    spec = complete(SPEC.model_copy(update={"machines": names}))
    record = launch(PlannedRun(spec, 0), "overhead", system, lambda _event: None, launcher=launcher)
    elapsed = time.perf_counter() - began
    assert record.ok and record.startup is not None, record.reason
    rest = sum(epoch.seconds + (epoch.evaluation_seconds or 0.0) for epoch in record.epochs)
    return record, elapsed - rest - record.startup.import_seconds


def samples_per_second(record: Record) -> float:
    """Steady samples/s: of the middle step once steps have settled."""
    assert record.steady_step_seconds is not None
    return record.spec.samples_per_step / record.steady_step_seconds


def cpu_seconds(record: Record) -> float:
    """CPU seconds of all ranks in a step, without those of the first epoch: other load hardly changes them."""
    later = record.epochs[1:]
    return sum(epoch.cpu_seconds for epoch in later) / sum(epoch.steps for epoch in later)


def main(rounds: int) -> None:
    """Prints both ways of each round and the ratio of their medians."""
    rates, costs, starts = ({way: list[float]() for way in ("ssh", "namespaces")} for _ in range(3))
    with namespaces.machines(*NAMES) as network:
        os.environ["PACELINE_SSH"] = network.ssh
        plain = NamespaceLauncher(InNamespaces(network), network)
        with open_machines(parse_fleet(f"ssh:{','.join(NAMES)}")) as opened:
            remote = opened.launchers([SPEC])[SPEC.strategy]
            for number in range(rounds):
                for way in ("ssh", "namespaces") if number % 2 else ("namespaces", "ssh"):
                    if way == "ssh":
                        record, start = timed_run(remote, opened.system, opened.names)
                    else:
                        with inside(network, NAMES[0]):
                            record, start = timed_run(plain, local_system(), "")
                    rates[way].append(samples_per_second(record))
                    costs[way].append(cpu_seconds(record))
                    starts[way].append(start)
                    print(
                        f"{number} {way:10} {rates[way][-1]:8,.0f} samples/s, {start:.2f} s around the steps",
                        flush=True,
                    )
    ratio = median(rates["ssh"]) / median(rates["namespaces"])
    best = max(rates["ssh"]) / max(rates["namespaces"])
    later = median(starts["ssh"]) - median(starts["namespaces"])
    print(f"steady samples/s over ssh: {ratio:.3f} of processes without agents (best of each: {best:.3f})")
    cost = median(costs["ssh"]) / median(costs["namespaces"])
    print(f"CPU seconds of a step over ssh: {cost:.3f} of those without agents")
    print(f"a run over ssh starts and ends {later:+.2f} s later")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
