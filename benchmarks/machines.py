"""What agents cost: runs over two machines by ssh, against the same processes in the same namespaces without agents.

`python benchmarks/machines.py [ROUNDS]`, as root with iproute2 and openssh-server. Both ways take short turns, in
an order by lot. Printed are, of the pairs of turns, the middle ratio of steady samples/s with its 90 % interval; the
CPU seconds of a step; what everything that is no rank takes of a core meanwhile; and seconds around the steps. Other
load moves the first, and hardly the second and third.
"""

import os
import random
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from paceline.runs.fork_server import ForkServer
from paceline.runs.launch import launch
from paceline.runs.launchers import Launcher
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.links.namespaces import inside
from paceline.runs.starters import WORKER, NewProcess, RunProcess, Starter, imports_of, split_environment
from paceline.runs.wire import EpochEvent, ForkedWorker, ForkRequest, RunNews
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import System, local_system

# The machines of tests: network namespaces with an sshd each.
namespaces: Any = import_module("namespaces")
NAMES = ("left", "right")
ROUNDS = 12
SPEC = RunSpec(strategy="torch-ddp", workers=2, global_batch=512, epochs=12)
RESAMPLED = 2_000


class ServerOfOwn(ForkServer):
    """A fork server in a namespace and a session of its own: kernels share cores out by session, as agents have one."""

    def __init__(self, network: Any, name: str, modules: tuple[str, ...], environment: dict[str, str]) -> None:
        self.modules, self.environment, self.exit_codes = modules, environment, {}
        self._channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = ["-P", "-m", "paceline.runs.fork_server", str(end.fileno()), str(os.getpid()), *modules]
        self.process = subprocess.Popen(
            network.inside(name, sys.executable, *words), env=environment, pass_fds=(end.fileno(),),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end.close()


@dataclass(frozen=True)
class InNamespaces(Starter):
    """Forks each rank in the namespace of its machine."""

    network: Any
    servers: list[ServerOfOwn] = field(default_factory=list)

    def prepare(self, environments: list[dict[str, str]]) -> None:
        """Imports once for all runs, as the agents do."""
        modules = (WORKER, *imports_of(strategy(SPEC.strategy)))
        for name, environment in list(zip(NAMES, environments, strict=True))[len(self.servers) :]:
            self.servers.append(ServerOfOwn(self.network, name, modules, split_environment(environment)[0]))
        for server in self.servers:
            assert server.wait_for_imports() is not None

    def start(self, process: NewProcess) -> RunProcess:
        """A fork of the server of its machine."""
        server = self.servers[process.rank]
        ready = server.wait_for_imports()
        assert ready is not None
        worker = ForkedWorker(folder=process.folder, rank=process.rank, import_nanoseconds=ready.import_nanoseconds)
        request = ForkRequest(
            entry=f"{WORKER}:run_forked", argument=worker.model_dump_json(), log=process.log,
            environment=split_environment(process.environment)[1],
        )  # fmt: skip
        return server.fork(request, process.fds)


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


@dataclass
class Turn:
    """One run, and what everything but its ranks used from its first epoch's end to its last one's."""

    helpers: list[int]
    record: Record | None = None
    around_seconds: float = 0.0
    _marks: list[tuple[float, float]] = field(default_factory=list)

    def note(self, event: RunNews) -> None:
        """Reads clocks at the end of an epoch."""
        if isinstance(event, EpochEvent):
            used = sum(map(cpu_seconds, self.helpers)) + time.process_time()
            self._marks.append((time.perf_counter(), used))

    def run(self, launcher: Launcher, system: System, names: str) -> "Turn":
        """The turn, once it is over."""
        began = time.perf_counter()
        spec = complete(SPEC.model_copy(update={"machines": names}))
        self.record = record = launch(PlannedRun(spec, 0), "overhead", system, self.note, launcher=launcher)
        elapsed = time.perf_counter() - began
        assert record.ok, record.reason
        # Imports were made by the first pair.
        epochs = sum(epoch.seconds + (epoch.evaluation_seconds or 0.0) for epoch in record.epochs)
        self.around_seconds = elapsed - epochs
        return self

    @property
    def samples_per_second(self) -> float:
        """Of the middle step once steps have settled."""
        assert self.record is not None and self.record.steady_step_seconds is not None
        return self.record.spec.samples_per_step / self.record.steady_step_seconds

    @property
    def rank_seconds(self) -> float:
        """CPU seconds of all ranks in a step, without those of the first epoch."""
        assert self.record is not None
        later = self.record.epochs[1:]
        return sum(epoch.cpu_seconds for epoch in later) / sum(epoch.steps for epoch in later)

    @property
    def helper_cores(self) -> float:
        """Cores that the launcher, clients of ssh, sshd and agents kept busy."""
        (began, before), (ended, after) = self._marks[0], self._marks[-1]
        return (after - before) / (ended - began)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of the threads of a process (Documentation/scheduler/sched-stats.rst)."""
    total = 0
    for account in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(account.read_text().split()[0])
    return total / 1e9


def helpers(network: Any) -> list[int]:
    """Clients of ssh, sshd and agents, whose fork servers and ranks are none of them."""
    listed = [
        subprocess.run(["ip", "netns", "pids", f"{network.prefix}{name}"], capture_output=True, text=True, check=True)
        for name in (*NAMES, "bridge")
    ]
    pids = [int(word) for each in listed for word in each.stdout.split()]
    return [pid for pid in pids if b"fork_server" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where the middle of such ratios is with 90 % confidence, by drawing anew from them."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    return medians[RESAMPLED // 20], medians[-RESAMPLED // 20]


def main(rounds: int) -> None:
    """Prints each pair of turns, and what all of them say."""
    turns: dict[str, list[Turn]] = {"ssh": [], "plain": []}
    lot = random.Random(0)
    with namespaces.machines(*NAMES) as network:
        os.environ["PACELINE_SSH"] = network.ssh
        starter = InNamespaces(network)
        plain = NamespaceLauncher(starter, network)
        with open_machines(parse_fleet(f"ssh:{','.join(NAMES)}")) as opened:
            # Named twice, so that imports are shared.
            remote = opened.launchers([SPEC, SPEC])[SPEC.strategy]
            there = os.open(f"/run/netns/{network.prefix}{NAMES[0]}", os.O_RDONLY)
            for number in range(-1, rounds):
                for way in lot.sample(list(turns), 2):
                    if way == "ssh":
                        turn = Turn(helpers(network)).run(remote, opened.system, opened.names)
                    else:
                        with inside(there):
                            turn = Turn([]).run(plain, local_system(), "")
                    # The first pair pays for imports and warms caches.
                    turns[way] += [turn] if number >= 0 else []
                    print(
                        f"{number:3} {way:5} {turn.samples_per_second:8,.0f} samples/s, "
                        f"{turn.rank_seconds * 1e3:.2f} CPU ms/step, {turn.helper_cores:.4f} cores besides, "
                        f"{turn.around_seconds:.2f} s around the steps", flush=True,
                    )  # fmt: skip
            os.close(there)
        for server in starter.servers:
            server.close()
    report(turns)


def report(turns: dict[str, list[Turn]]) -> None:
    """What all pairs say together."""
    pairs = list(zip(turns["ssh"], turns["plain"], strict=True))
    rates = [ssh.samples_per_second / plain.samples_per_second for ssh, plain in pairs]
    costs = [ssh.rank_seconds / plain.rank_seconds for ssh, plain in pairs]
    low, high = interval(rates)
    print(f"steady samples/s over ssh: {median(rates):.3f} of those without agents (90 %: {low:.3f} to {high:.3f})")
    low, high = interval(costs)
    print(f"CPU seconds of a step: {median(costs):.3f} of those without agents (90 %: {low:.3f} to {high:.3f})")
    besides = {way: median(turn.helper_cores for turn in turns[way]) for way in turns}
    cores = len(local_system().cores)
    print(
        f"besides the ranks: {besides['ssh']:.4f} cores with agents, {besides['plain']:.4f} without: the difference is "
        f"{(besides['ssh'] - besides['plain']) / cores:.2%} of {cores} cores"
    )
    later = median(ssh.around_seconds for ssh, _ in pairs) - median(plain.around_seconds for _, plain in pairs)
    print(f"a run over ssh starts and ends {later:+.2f} s later")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
