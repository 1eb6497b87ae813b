"""How the processes of a run are started on this machine: as new Python interpreters, or forked from a fork server.

Where several runs share a framework, a fork server imports it once. Where that import starts threads, which a fork
does not survive, each process starts afresh instead.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol

from paceline.runs.fork_server import ForkServer
from paceline.runs.wire import ForkedWorker, ForkRequest
from paceline.strategies import Strategy

WORKER = "paceline.runs.worker"
# Frameworks whose `declared` file says what else of them is imported sooner or later in most runs.
_PRELOADING = ("torch", "tensorflow", "jax")
# Variables that differ from run to run, or from rank to rank of a GPU cut into slices.
_LATE = ("CUDA_MPS_", "NCCL_", "GLOO_")


class RunProcess(Protocol):
    """A process of a run, however it was started."""

    @property
    def pid(self) -> int:
        """Its number, which is also that of its process group."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""


@dataclass(frozen=True)
class NewProcess:
    """A process of a run that is to be started."""

    folder: Path
    rank: int
    environment: dict[str, str]
    log: Path
    # Every process inherits the pipe for events, the first also the socket where the others will find it.
    fds: tuple[int, ...]


class Starter:
    """Starts a new Python interpreter for each process of a run; other ways to start them derive from it."""

    def prepare(self, environments: list[dict[str, str]]) -> None:
        """Does what can be done before the time of the run begins: nothing where nothing is shared."""

    def cpu_seconds(self) -> float:
        """CPU seconds so far of processes that the kernel does not count as this one's children."""
        return 0.0

    def start(self, process: NewProcess) -> RunProcess:
        """Starts `python -m paceline.runs.worker`, which leads a process group of its own."""
        words = [str(process.folder), *map(str, (process.rank, *process.fds, os.getpid()))]
        with process.log.open("wb") as log:
            return subprocess.Popen(
                # -P: a file in the user's folder must not stand in for a module of the same name.
                [sys.executable, "-P", "-m", WORKER, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=process.environment,
                pass_fds=process.fds,
                process_group=0,
            )


@dataclass
class ForkServers:
    """One fork server per framework and environment, each started when first needed."""

    _servers: dict[str, ForkServer] = field(default_factory=dict)

    def starter(self, strategy: Strategy) -> "ForkStarter":
        """Starts the processes of runs of that strategy."""
        return ForkStarter(self, (WORKER, *imports_of(strategy)))

    def server(self, modules: tuple[str, ...], environment: dict[str, str]) -> ForkServer:
        """The server with these imports and this environment; another one where it was killed."""
        key = json.dumps([modules, environment], sort_keys=True)
        if key in self._servers and self._servers[key].was_killed:
            self._servers.pop(key).close()
        if key not in self._servers:
            self._servers[key] = ForkServer(modules, environment)
        return self._servers[key]

    def cpu_seconds(self) -> float:
        """CPU seconds so far of all servers and of the processes that they forked."""
        return sum(server.cpu_seconds() for server in self._servers.values())

    def close(self) -> None:
        """Ends all servers."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


@dataclass(frozen=True)
class ForkStarter(Starter):
    """Forks each process from the server that has its environment."""

    servers: ForkServers
    modules: tuple[str, ...]

    def prepare(self, environments: list[dict[str, str]]) -> None:
        """Starts the servers that a run will need and waits for their imports."""
        for server in [self.servers.server(self.modules, split_environment(env)[0]) for env in environments]:
            server.wait_for_imports()

    def cpu_seconds(self) -> float:
        """CPU seconds so far of all servers and of the processes that they forked."""
        return self.servers.cpu_seconds()

    def start(self, process: NewProcess) -> RunProcess:
        """Forks a process, or starts a new interpreter where a fork is not safe."""
        early, late = split_environment(process.environment)
        server = self.servers.server(self.modules, early)
        ready = server.wait_for_imports()
        if ready is None:
            return super().start(process)
        worker = ForkedWorker(folder=process.folder, rank=process.rank, import_nanoseconds=ready.import_nanoseconds)
        request = ForkRequest(
            entry=f"{WORKER}:run_forked", argument=worker.model_dump_json(), log=process.log, environment=late
        )
        try:
            return server.fork(request, process.fds)
        except ChildProcessError:  # killed at this very moment
            return super().start(process)


def split_environment(environment: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits variables into those that imports may read and those that only the first use of a GPU or of gloo reads."""
    late = {name: value for name, value in environment.items() if name.startswith(_LATE)}
    return {name: value for name, value in environment.items() if name not in late}, late


def imports_of(strategy: Strategy) -> tuple[str, ...]:
    """The modules that a run of that strategy imports first."""
    if strategy.framework is None:
        return strategy.needs.packages
    if strategy.framework not in _PRELOADING:
        return (strategy.framework, *strategy.needs.packages)
    return (*import_module(f"paceline.frameworks.{strategy.framework}.declared").PRELOAD, *strategy.needs.packages)


@contextlib.contextmanager
def fork_servers() -> Iterator[ForkServers]:
    """Fork servers that end when the context ends."""
    servers = ForkServers()
    try:
        yield servers
    finally:
        servers.close()
