"""Starts runs from a process that has the framework imported already: seconds become hundredths of a second.

The template imports and then only waits and forks, with one thread, so that a forked process is as a fresh one would be
after its imports; nothing that a run does can reach the template or another run. Where an import starts threads, runs
start afresh instead. `python -m paceline.runs.template` is the template itself.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

from paceline.runs.lifeline import die_with
from paceline.runs.processes import POLL_SECONDS, Inherited, RunProcess, start_fresh, stat_fields
from paceline.runs.worker import CODE_FAILED, Start, leave, main
from paceline.strategies import Strategy

MESSAGE_BYTES = 1 << 16
# Of `stat_fields`: time in user mode and in the kernel, the process's own and that of its ended children.
TICKS = slice(11, 15)
# Which file of `frameworks` knows what else of a framework is imported sooner or later in most runs.
_FACTS = ("torch", "tensorflow", "jax")
# Variables that differ from run to run and rank to rank of a GPU cut into slices.
_LATE = ("CUDA_MPS_", "NCCL_")


@dataclass
class Template:
    """The launcher's side: asks for processes and hears how they ended."""

    modules: tuple[str, ...]
    environment: dict[str, str]
    codes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-P",
            "-m",
            "paceline.runs.template",
            str(theirs.fileno()),
            str(os.getpid()),
            *self.modules,
        ]
        # What imports say goes to nobody: TensorFlow greets every process. Where they fail, the runs that start afresh
        # instead fail in the same way, and their logs are kept.
        nobody = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command,
            env=self.environment,
            pass_fds=(theirs.fileno(),),
            process_group=0,
            stdin=nobody,
            stdout=nobody,
            stderr=nobody,
        )
        theirs.close()
        said = self._channel.recv(MESSAGE_BYTES)  # it has imported everything, or could not
        told = json.loads(said) if said else {"threads": 0, "import_nanoseconds": 0}
        self.can_fork, self._import_nanoseconds = told["threads"] == 1, told["import_nanoseconds"]

    def start(self, folder: Path, rank: int, late: dict[str, str], log_path: Path, inherited: Inherited) -> "Forked":
        """A process forked from the template, with some more variables in its environment."""
        request = json.dumps(
            {
                "folder": str(folder),
                "rank": rank,
                "log": str(log_path),
                "import_nanoseconds": self._import_nanoseconds,
                "environment": late,
            }
        ).encode()
        socket.send_fds(self._channel, [request], list(inherited.fds(rank)))
        while True:
            started = self.take(json.loads(self._channel.recv(MESSAGE_BYTES)))
            if started is not None:
                return Forked(started, self)

    def take(self, said: dict[str, int]) -> int | None:
        """Notes what the template said; gives the number of a process that started."""
        if "started" not in said:
            self.codes[said["ended"]] = said["code"]
            return None
        # The system gives numbers out again: what an earlier process of this number ended with says nothing now.
        self.codes.pop(said["started"], None)
        return said["started"]

    def hear(self) -> None:
        """Takes in what it said about processes that ended."""
        while select.select([self._channel], [], [], 0)[0]:
            said = self._channel.recv(MESSAGE_BYTES)
            if not said:
                raise ChildProcessError("the template process ended; its runs ended with it")
            self.take(json.loads(said))

    def cpu_seconds(self) -> float:
        """Its own so far, and those of all processes that it forked and saw end."""
        return sum(int(ticks) for ticks in stat_fields(self._process.pid)[TICKS]) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends it; processes that it forked end with it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class Forked:
    """A process of a run that the template forked."""

    pid: int
    template: Template

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        self.template.hear()
        return self.template.codes.get(self.pid)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        while (code := self.poll()) is None:
            sleep(POLL_SECONDS / 4)
        return code


@dataclass
class Templates:
    """One template per framework and environment, made when first needed."""

    _made: dict[str, Template] = field(default_factory=dict)

    def starter(self, chosen: Strategy) -> "ForkStarter":
        """How to start the processes of a run of that strategy."""
        return ForkStarter(self, modules_of(chosen))

    def of(self, modules: tuple[str, ...], env: dict[str, str]) -> Template:
        """The template with these imports and this environment."""
        name = json.dumps([modules, env], sort_keys=True)
        if name not in self._made:
            self._made[name] = Template(modules, env)
        return self._made[name]

    def cpu_seconds(self) -> float:
        """Of all templates and what they forked, so far."""
        return sum(template.cpu_seconds() for template in self._made.values())

    def close(self) -> None:
        """Ends all templates."""
        for template in self._made.values():
            template.close()
        self._made.clear()


@dataclass(frozen=True)
class ForkStarter:
    """A `Starter` that forks from templates."""

    made: Templates
    modules: tuple[str, ...]

    def prepare(self, environments: list[dict[str, str]]) -> None:
        """Makes the templates that a run will need, before its own time begins."""
        for env in environments:
            self.made.of(self.modules, divided(env)[0])

    def cpu_seconds(self) -> float:
        """Of the processes that its runs are forked from, and of those runs."""
        return self.made.cpu_seconds()

    def __call__(
        self, folder: Path, rank: int, env: dict[str, str], log_path: Path, inherited: Inherited
    ) -> RunProcess:
        """Starts one process."""
        early, late = divided(env)
        template = self.made.of(self.modules, early)
        # An import that starts threads leaves a process that cannot be forked; then each run imports for itself.
        if not template.can_fork:
            return start_fresh(folder, rank, env, log_path, inherited)
        return template.start(folder, rank, late, log_path, inherited)


def divided(env: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What imports may read, and what only the first use of a GPU reads and a fork can be given later."""
    late = {name: value for name, value in env.items() if name.startswith(_LATE)}
    return {name: value for name, value in env.items() if name not in late}, late


def modules_of(chosen: Strategy) -> tuple[str, ...]:
    """What a run of that strategy imports first."""
    if chosen.framework is None:
        return chosen.needs.packages
    known = chosen.framework in _FACTS
    usual = import_module(f"paceline.frameworks.{chosen.framework}.declared").PRELOAD if known else (chosen.framework,)
    return (*usual, *chosen.needs.packages)


@contextlib.contextmanager
def templates() -> Iterator[Templates]:
    """Templates that end when the context ends."""
    made = Templates()
    try:
        yield made
    finally:
        made.close()


def wait_and_fork(channel: socket.socket) -> None:
    """The template's whole life: a message in, a process forked, its end reported."""
    children: set[int] = set()
    while True:
        if select.select([channel], [], [], POLL_SECONDS)[0]:
            message, fds, _flags, _address = socket.recv_fds(channel, MESSAGE_BYTES, 2)
            if not message:
                return
            pid = _fork(channel, json.loads(message), fds)
            children.add(pid)
            for fd in fds:
                os.close(fd)
            channel.send(json.dumps({"started": pid}).encode())
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                channel.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _fork(channel: socket.socket, request: dict[str, Any], fds: list[int]) -> int:
    template_pid = os.getpid()
    pid = os.fork()
    if pid:
        # Here and in the child: whichever comes first, the group exists before anyone is told of it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        channel.close()
        os.environ |= request["environment"]
        log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        listen_fd = fds[1] if len(fds) > 1 else None
        start = Start(
            folder=Path(str(request["folder"])), rank=int(request["rank"]), events_fd=fds[0], listen_fd=listen_fd,
            parent_pid=template_pid, started=perf_counter_ns(),
            imported_before=int(request["import_nanoseconds"]),
        )  # fmt: skip
        leave(main(start))
    finally:
        os._exit(CODE_FAILED)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    began = perf_counter_ns()
    for module in sys.argv[3:]:
        import_module(module)
    took = perf_counter_ns() - began
    listening = socket.socket(fileno=int(sys.argv[1]))
    listening.send(json.dumps({"threads": _threads(), "import_nanoseconds": took}).encode())
    wait_and_fork(listening)
