"""Starts the processes of a run on this machine, each leading a process group, with a folder that all of them share."""

import contextlib
import os
import selectors
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.contract.context import Process
from paceline.runs.devices import lay_out_run, process_environment
from paceline.runs.folder import RunFolder, checkpoint_folder, run_folder
from paceline.runs.links.network import RunNetwork, run_network
from paceline.runs.meters.machine import MachineMeters, open_machine_meters
from paceline.runs.meters.watch import Watch
from paceline.runs.processes import POLL_SECONDS
from paceline.runs.slices import mps, slice_environment
from paceline.runs.starters import NewProcess, RunProcess, Starter
from paceline.runs.wire import (
    EVENT,
    MachineReport,
    Published,
    RankError,
    RankResult,
    RunNews,
    RunOrders,
    WorkerOrders,
)
from paceline.spec import RunSpec
from paceline.systems import System, local_system

CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class LocalLauncher:
    """Starts processes on this machine, in the way of its starter."""

    starter: Starter = field(default_factory=Starter)

    def lay_out(self, spec: RunSpec, system: System) -> tuple[Process, ...]:
        """Processes that reach each other over loopback, with cores dealt in turn."""
        return lay_out_run(spec, system.cores)

    @contextlib.contextmanager
    def open(self, orders: RunOrders, machine: int = 0) -> Iterator["LocalGroup"]:
        """A group whose folder, port and fork servers are ready, of the processes that are on that machine."""
        with contextlib.ExitStack() as stack:
            shared = stack.enter_context(mps(orders.spec))
            folder = stack.enter_context(run_folder())
            network = None
            if orders.processes[0].place.machine == machine:
                network = stack.enter_context(run_network(orders, local_system().cores))
                orders = orders.model_copy(update={"processes": network.processes})
            processes = [process for process in orders.processes if process.place.machine == machine]
            environments = {
                process.rank: environment
                for process, environment in zip(
                    processes, process_environments(orders.spec, processes, shared), strict=True
                )
            }
            group = LocalGroup(folder, orders, environments, self.starter, network=network)
            group.checkpoints = stack.enter_context(checkpoint_folder(orders.spec, folder))
            if network is not None:
                group.meeting = network.listener.getsockname()
            self.starter.prepare(list(environments.values()))
            group.meters = open_machine_meters(
                orders.spec, processes, lambda: self.starter.cpu_seconds() + (network.cpu_seconds() if network else 0.0)
            )
            try:
                yield group
            finally:
                group.kill()
                group.close()


def process_environments(spec: RunSpec, processes: list[Process], shared: dict[str, str]) -> list[dict[str, str]]:
    """The environment variables of each process, with those that all of them share."""
    system = local_system()
    return [
        process_environment(spec, process, os.environ) | slice_environment(spec, process, system) | shared
        for process in processes
    ]


@dataclass
class LocalGroup:
    """The processes of one run on this machine; where others are on other machines, only those that are here."""

    folder: RunFolder
    orders: RunOrders
    # By rank, in its order.
    environments: dict[int, dict[str, str]]
    starter: Starter
    meters: MachineMeters = field(default_factory=MachineMeters)
    checkpoints: Path | None = None
    # The socket where all processes meet is here where rank 0 is.
    network: RunNetwork | None = None
    meeting: tuple[str, int] | None = None
    # What processes left for others, for those that are on other machines; whoever relays it empties the list.
    published: list[Published] = field(default_factory=list)
    processes: list[RunProcess] = field(default_factory=list)
    _watch: Watch | None = None
    _events_fd: int | None = None
    # The beginning of an event of which the rest has not come yet.
    _incomplete: bytes = b""

    def start(self) -> None:
        """Starts every process; the first one inherits the socket on which the others will find it."""
        assert self.meeting is not None
        host, port = self.meeting
        self.folder.write_orders(WorkerOrders(**dict(self.orders), host=host, port=port, checkpoints=self.checkpoints))
        self._events_fd, write_fd = os.pipe()
        self.meters.start()
        try:
            for rank, environment in self.environments.items():
                listening = (self.network.listener.fileno(),) if rank == 0 and self.network is not None else ()
                fds = (write_fd, *listening)
                process = NewProcess(self.folder.path, rank, environment, self.folder.log(rank), fds)
                self.processes.append(self.starter.start(process))
        finally:
            os.close(write_fd)
        logs = {rank: self.folder.log(rank) for rank in self.environments}
        self._watch = Watch(lambda: [process.pid for process in self.processes], logs, self.meters.gpus)

    def depart(self, rank: int) -> None:
        """Kills a process without warning, and whatever it started."""
        process = self.processes[rank]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def arrive(self, rank: int) -> None:
        """Starts a process in the place of one that departed; nobody listens to its events.

        It is a new interpreter, as on a machine that has just come: it imports everything by itself.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY)
        log = self.folder.later_log(rank)
        try:
            process = NewProcess(self.folder.path, rank, self.environments[rank], log, (nowhere,))
            self.processes[rank] = Starter().start(process)
        finally:
            os.close(nowhere)

    def events(self, seconds: float) -> list[RunNews]:
        """What processes reported within that time, and what could be seen of them."""
        assert self._events_fd is not None and self._watch is not None
        self.meters.read()
        return [*self._reported(self._events_fd, seconds), *self._watch.look()]

    def _reported(self, events_fd: int, seconds: float) -> list[RunNews]:
        with selectors.DefaultSelector() as selector:
            selector.register(events_fd, selectors.EVENT_READ)
            if not selector.select(seconds):
                return []
        chunk = os.read(events_fd, CHUNK_BYTES)
        if not chunk:  # every process has closed its end: do not spin until all of them have been waited for
            time.sleep(POLL_SECONDS / 4)
        *lines, self._incomplete = (self._incomplete + chunk).split(b"\n")
        messages = [EVENT.validate_json(line) for line in lines]
        self.published += [message for message in messages if isinstance(message, Published)]
        return [message for message in messages if not isinstance(message, Published)]

    def exit_codes(self) -> list[int | None]:
        """The exit code of each process; None while it runs, negative for a signal."""
        return [process.poll() for process in self.processes]

    def troubles(self) -> list[str]:
        """Nothing: a launcher that runs has its machine."""
        return []

    def kill(self) -> None:
        """Ends every process and whatever it started, at once; a second call finds none."""
        self.meters.read(last=True)
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes.clear()

    def reports(self) -> list[RankResult | RankError | None]:
        """What each process left in the folder."""
        return [self.folder.read_report(rank) for rank in self.environments]

    def log_tails(self) -> list[str]:
        """The end of what each process printed."""
        return [self.folder.log_tail(rank) for rank in self.environments]

    def machines(self) -> list[MachineReport]:
        """What the meters of this machine read."""
        findings = self.network.findings() if self.network is not None else ()
        return [self.meters.report().model_copy(update={"findings": tuple(findings)})]

    def save_weights(self, file: Path) -> None:
        """Copies the weights out of the folder, if the run kept any."""
        if self.folder.weights.exists():
            shutil.copyfile(self.folder.weights, file)

    def close(self) -> None:
        """Closes the pipe for events."""
        if self._events_fd is not None:
            os.close(self._events_fd)
            self._events_fd = None
