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
from paceline.record import Finding
from paceline.runs.devices import lay_out_run, process_environment
from paceline.runs.folder import RunFolder, run_folder
from paceline.runs.links.network import RunNetwork, run_network
from paceline.runs.processes import POLL_SECONDS
from paceline.runs.slices import mps, slice_environment
from paceline.runs.starters import NewProcess, RunProcess, Starter
from paceline.runs.wire import EVENT, EpochEvent, RankError, RankResult, RunOrders, StepEvent, WorkerOrders
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
    def open(self, orders: RunOrders) -> Iterator["LocalGroup"]:
        """A group whose folder, port and fork servers are ready."""
        cores = local_system().cores
        with mps(orders.spec) as shared, run_folder() as folder, run_network(orders, cores) as network:
            orders = orders.model_copy(update={"processes": network.processes})
            host, port = network.listener.getsockname()
            folder.write_orders(WorkerOrders(**dict(orders), host=host, port=port))
            environments = process_environments(orders, shared)
            self.starter.prepare(environments)
            group = LocalGroup(folder, environments, self.starter, network)
            try:
                yield group
            finally:
                group.kill()
                group.close()

    def cpu_seconds(self) -> float:
        """CPU seconds of fork servers and of the processes that they forked."""
        return self.starter.cpu_seconds()


def process_environments(orders: RunOrders, shared: dict[str, str]) -> list[dict[str, str]]:
    """The environment variables of each process, with those that all of them share."""
    spec, system = orders.spec, local_system()
    return [
        process_environment(spec, process, os.environ) | slice_environment(spec, process, system) | shared
        for process in orders.processes
    ]


@dataclass
class LocalGroup:
    """The processes of one run on this machine."""

    folder: RunFolder
    environments: list[dict[str, str]]
    starter: Starter
    network: RunNetwork
    processes: list[RunProcess] = field(default_factory=list)
    _events_fd: int | None = None
    # The beginning of an event of which the rest has not come yet.
    _incomplete: bytes = b""

    def start(self) -> None:
        """Starts every process; the first one inherits the socket on which the others will find it."""
        self._events_fd, write_fd = os.pipe()
        try:
            for rank, environment in enumerate(self.environments):
                fds = (write_fd, self.network.listener.fileno()) if rank == 0 else (write_fd,)
                process = NewProcess(self.folder.path, rank, environment, self.folder.log(rank), fds)
                self.processes.append(self.starter.start(process))
        finally:
            os.close(write_fd)

    def events(self, seconds: float) -> list[StepEvent | EpochEvent]:
        """The progress that processes reported within that time."""
        assert self._events_fd is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._events_fd, selectors.EVENT_READ)
            if not selector.select(seconds):
                return []
        chunk = os.read(self._events_fd, CHUNK_BYTES)
        if not chunk:  # every process has closed its end: do not spin until all of them have been waited for
            time.sleep(POLL_SECONDS / 4)
        *lines, self._incomplete = (self._incomplete + chunk).split(b"\n")
        return [EVENT.validate_json(line) for line in lines]

    def exit_codes(self) -> list[int | None]:
        """The exit code of each process; None while it runs, negative for a signal."""
        return [process.poll() for process in self.processes]

    def kill(self) -> None:
        """Ends every process and whatever it started, at once; a second call finds none."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes.clear()

    def reports(self) -> list[RankResult | RankError | None]:
        """What each process left in the folder."""
        return [self.folder.read_report(rank) for rank in range(len(self.environments))]

    def log_tails(self) -> list[str]:
        """The end of what each process printed."""
        return [self.folder.log_tail(rank) for rank in range(len(self.environments))]

    def findings(self) -> list[Finding]:
        """Warnings about the network between the processes."""
        return self.network.findings()

    def save_weights(self, file: Path) -> None:
        """Copies the weights out of the folder, if the run kept any."""
        if self.folder.weights.exists():
            shutil.copyfile(self.folder.weights, file)

    def close(self) -> None:
        """Closes the pipe for events."""
        if self._events_fd is not None:
            os.close(self._events_fd)
            self._events_fd = None
