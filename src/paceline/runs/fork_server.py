"""A process that imports modules once and then forks others, so that each of them starts in hundredths of a second.

The server imports and then only waits and forks, with one thread, so that a forked process is as a fresh one would be
after its imports; nothing that a forked process does can reach the server or another process. Runs are forked from one
(`starters.py`), and so are measurements (`calibrate/gauge.py`). `python -m paceline.runs.fork_server` is the server.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import IO

from paceline.runs.processes import CODE_FAILED, POLL_SECONDS, cpu_seconds, die_with, leave

if __name__ == "__main__":
    # Before the imports, which take seconds on a busy machine: a tool that is killed meanwhile must leave nobody alive.
    die_with(int(sys.argv[2]))

from paceline.runs.wire import (
    MESSAGE_BYTES,
    SERVER_MESSAGE,
    ForkRequest,
    ProcessEnded,
    ProcessStarted,
    ServerReady,
)

MOST_FDS = 2


@dataclass
class ForkServer:
    """The client's side: asks the server for processes and keeps the exit codes that it reports."""

    modules: tuple[str, ...]
    environment: dict[str, str]
    # Where what the imports print goes: nowhere, because TensorFlow greets every process.
    output: IO[bytes] | int = subprocess.DEVNULL
    exit_codes: dict[int, int] = field(default_factory=dict)
    # Whether the server has ended, and with it, by the kernel's hand, all processes that it forked.
    ended: bool = False

    def __post_init__(self) -> None:
        self._channel, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = ["-P", "-m", "paceline.runs.fork_server", str(server_end.fileno()), str(os.getpid()), *self.modules]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=self.environment,
            pass_fds=(server_end.fileno(),),
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
        )
        server_end.close()

    @cached_property
    def ready(self) -> ServerReady | None:
        """What the server says once it has imported everything; None where it could not."""
        message = self._message()
        return ServerReady.model_validate_json(message) if message else None

    @property
    def was_killed(self) -> bool:
        """Whether it ended after it had imported everything."""
        return self.process.poll() is not None and self.ready is not None

    def wait_for_imports(self) -> ServerReady | None:
        """Returns when a fork is possible; None where it is not safe, as after an import that started threads."""
        return self.ready if self.ready is not None and self.ready.threads == 1 else None

    def fork(self, request: ForkRequest, fds: Sequence[int] = ()) -> "ForkedProcess":
        """A new process, which inherits these file descriptors."""
        if self.ready is None:
            raise ChildProcessError("the fork server could not import its modules")
        try:
            socket.send_fds(self._channel, [request.model_dump_json().encode()], list(fds))
        except BrokenPipeError:
            self.ended = True
        while not self.ended:
            if (pid := self._receive()) is not None:
                return ForkedProcess(pid, self)
        raise ChildProcessError("the fork server ended; the processes that it forked ended with it")

    def collect_exit_codes(self, seconds: float = 0.0) -> None:
        """Takes in what the server reports of ended processes; waits for the first report at most that long."""
        while not self.ended and select.select([self._channel], [], [], seconds)[0]:
            self._receive()
            seconds = 0.0

    def _receive(self) -> int | None:
        message = self._message()
        return self.record_message(SERVER_MESSAGE.validate_json(message)) if message else None

    def _message(self) -> bytes:
        """The next message; empty where the server has ended."""
        try:
            message = self._channel.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            message = b""
        self.ended = not message
        return message

    def record_message(self, message: ProcessStarted | ProcessEnded) -> int | None:
        """Keeps an exit code; gives the number of a process that started."""
        if isinstance(message, ProcessEnded):
            self.exit_codes[message.pid] = message.code
            return None
        # The system gives numbers out again: the exit code of an earlier process of this number says nothing now.
        self.exit_codes.pop(message.pid, None)
        return message.pid

    def cpu_seconds(self) -> float:
        """CPU seconds of the server so far, and of all ended processes that it forked."""
        return cpu_seconds(self.process.pid)

    def close(self) -> None:
        """Ends the server; processes that it forked end with it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class ForkedProcess:
    """A process that a fork server started."""

    pid: int
    server: ForkServer

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        self.server.collect_exit_codes()
        return self.server.exit_codes.get(self.pid, -signal.SIGKILL if self.server.ended else None)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        while (code := self.poll()) is None:
            self.server.collect_exit_codes(POLL_SECONDS)
        return code


def serve(channel: socket.socket) -> None:
    """The server's whole life: it forks a process for each request and reports when one ends."""
    children: set[int] = set()
    while True:
        if select.select([channel], [], [], POLL_SECONDS if children else None)[0]:
            message, fds, _flags, _address = socket.recv_fds(channel, MESSAGE_BYTES, MOST_FDS)
            if not message:
                return
            pid = _fork(channel, ForkRequest.model_validate_json(message), fds)
            children.add(pid)
            for fd in fds:
                os.close(fd)
            channel.send(ProcessStarted(pid=pid).model_dump_json().encode())
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                report = ProcessEnded(pid=pid, code=os.waitstatus_to_exitcode(status))
                channel.send(report.model_dump_json().encode())


def _fork(channel: socket.socket, request: ForkRequest, fds: list[int]) -> int:
    server_pid = os.getpid()
    pid = os.fork()
    if pid:
        # Here and in the child: whichever comes first, the group exists before anyone learns the process's number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        return pid
    try:
        die_with(server_pid)
        os.setpgid(0, 0)
        channel.close()
        os.environ |= request.environment
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        leave(_call(request, fds))
    finally:
        os._exit(CODE_FAILED)


def _call(request: ForkRequest, fds: list[int]) -> int:
    try:
        module, _, function = request.entry.partition(":")
        code: int = getattr(import_module(module), function)(request.argument, fds)
    except BaseException:
        traceback.print_exc()
        return CODE_FAILED
    return code


def _thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    began = perf_counter_ns()
    for name in sys.argv[3:]:
        import_module(name)
    ready = ServerReady(threads=_thread_count(), import_nanoseconds=perf_counter_ns() - began)
    connected = socket.socket(fileno=int(sys.argv[1]))
    connected.send(ready.model_dump_json().encode())
    serve(connected)
