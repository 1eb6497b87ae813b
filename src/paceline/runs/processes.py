"""Starting the processes of a run, watching them, and ending them whole."""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

FOLDER_PREFIX = "paceline-run-"
POLL_SECONDS = 0.02
LOG_TAIL_BYTES = 8_000


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """A temporary folder for one run, removed afterwards; what killed tools left behind goes too."""
    for left in left_behind(FOLDER_PREFIX):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def left_behind(prefix: str) -> list[Path]:
    """Temporary folders, named after the process that made them, whose process is gone."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(prefix + "*"):
        maker = folder.name.removeprefix(prefix).partition("-")[0]
        if maker.isdigit() and not lives(int(maker)):
            found.append(folder)
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked about yet is still listed."""
    if not Path("/proc/self").exists():  # nothing can be told here, so nothing is taken for dead
        return True
    fields = stat_fields(pid)
    return bool(fields) and fields[0] != "Z"


def stat_fields(pid: int) -> list[str]:
    """What the kernel tells of a process behind its name, which may hold anything (proc(5)); nothing of one gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextlib.contextmanager
def held_port() -> Iterator[socket.socket]:
    """A listening socket on a port that the system chose; the first process inherits it, so no one can take it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


class RunProcess(Protocol):
    """A process of a run, however it was started."""

    @property
    def pid(self) -> int:
        """Its number, which is also that of its process group."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""


@dataclass
class Group:
    """The processes of one run."""

    processes: list[RunProcess]
    logs: list[Path]
    events_fd: int

    def exit_codes(self) -> list[int | None]:
        """Of each process; None while it runs, negative for a signal."""
        return [process.poll() for process in self.processes]

    def kill(self) -> None:
        """Ends every process and whatever it started, at once."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def events(self, seconds: float) -> bytes:
        """What the processes said within that time; empty if nothing."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.events_fd, selectors.EVENT_READ)
            if not selector.select(seconds):
                return b""
        said = os.read(self.events_fd, 1 << 16)
        if not said:  # every process closed its end: do not spin until they are reaped
            time.sleep(POLL_SECONDS / 4)
        return said

    def log_tail(self, rank: int) -> str:
        """The end of what a process printed."""
        return self.logs[rank].read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


@dataclass(frozen=True)
class Inherited:
    """What the processes of a run take over from the launcher."""

    listener: socket.socket
    write_fd: int

    def fds(self, rank: int) -> tuple[int, ...]:
        """Every process gets the pipe for events, the first also the socket where the others will find it."""
        return (self.write_fd, self.listener.fileno()) if rank == 0 else (self.write_fd,)


# Starts one process: its folder, rank, environment, log and what it inherits.
Starter = Callable[[Path, int, dict[str, str], Path, Inherited], RunProcess]


@runtime_checkable
class Prepared(Protocol):
    """A `Starter` that has something to do before the time of a run begins."""

    def prepare(self, environments: list[dict[str, str]]) -> None:
        """For processes with these environments."""

    def cpu_seconds(self) -> float:
        """So far, of what it starts processes with and of those of them that ended."""


def start_fresh(folder: Path, rank: int, env: dict[str, str], log_path: Path, inherited: Inherited) -> RunProcess:
    """A new Python interpreter, leading a process group of its own."""
    fds = inherited.fds(rank)
    with log_path.open("wb") as log:
        return subprocess.Popen(
            # -P: a file in the user's folder must not stand in for a module of the same name.
            [sys.executable, "-P", "-m", "paceline.runs.worker", str(folder), *map(str, (rank, *fds, os.getpid()))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            pass_fds=fds,
            process_group=0,
        )


@contextlib.contextmanager
def started(
    folder: Path, environments: list[dict[str, str]], listener: socket.socket, start: Starter
) -> Iterator[Group]:
    """The processes of a run; all are gone when the context ends."""
    read_fd, write_fd = os.pipe()
    group = Group([], [folder / f"rank-{rank}.log" for rank in range(len(environments))], read_fd)
    try:
        try:
            for rank, env in enumerate(environments):
                group.processes.append(start(folder, rank, env, group.logs[rank], Inherited(listener, write_fd)))
        finally:
            os.close(write_fd)
        yield group
    finally:
        group.kill()
        os.close(read_fd)
