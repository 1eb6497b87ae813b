"""What the kernel tells of processes, how they end together and answer, and the port that those of a run meet on."""

import contextlib
import ctypes
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

POLL_SECONDS = 0.02
CODE_OK, CODE_FAILED = 0, 1
PR_SET_PDEATHSIG = 1  # prctl(2)
# Of `stat_fields`: time in user mode and in the kernel, the process's own and that of its ended children.
TICKS = slice(11, 15)
DIGEST_BYTES = hashlib.sha256().digest_size


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and that nobody has waited for is still listed, as a zombie."""
    if not Path("/proc/self").exists():  # without such a list no process is taken for dead
        return True
    fields = stat_fields(pid)
    return bool(fields) and fields[0] != "Z"


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold anything (proc(5)); empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far, and of its ended children; 0 if it is gone."""
    return sum(int(ticks) for ticks in stat_fields(pid)[TICKS]) / os.sysconf("SC_CLK_TCK")


def run_queue_seconds() -> float:
    """The wait so far of the thread of this process that waited longest; 0 where the kernel keeps no such accounts."""
    longest = 0
    # Time on a core, time ready without one, turns (Documentation/scheduler/sched-stats.rst).
    for account in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            longest = max(longest, int(account.read_text().split()[1]))
    return longest / 1e9


def die_with(parent_pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to end this process by that signal when its parent dies, whatever way the parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent_pid:
        os._exit(1)


def leave(code: int) -> NoReturn:
    """Ends the process. Interpreter shutdown with native threads alive is where frameworks crash after all is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def held_port(address: str) -> Iterator[socket.socket]:
    """A listening socket at a port that the system chose; the first process inherits it, so no one can take it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen()
        yield listener


def write_answer(path: Path, answer: bytes) -> None:
    """Writes what a process that ran a user's code answers, with its digest; the name appears when all of it is there.

    Standard output and inherited descriptors are the user's, who may write to them, close them, or leave processes
    behind that hold them open. A file of its own depends on none of that.
    """
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(hashlib.sha256(answer).digest() + answer)
    unfinished.rename(path)


def read_answer(path: Path) -> bytes | None:
    """The answer; None where there is none, or not the one that was written."""
    try:
        frame = path.read_bytes()
    except OSError:
        return None
    digest, answer = frame[:DIGEST_BYTES], frame[DIGEST_BYTES:]
    return answer if hashlib.sha256(answer).digest() == digest else None
