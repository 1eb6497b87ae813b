"""A small process beside an agent: clears away what is left where the agent is killed, or stopped past its lease.

A dead agent's processes end by the kernel's hand; of its folder nobody else knows. One that is stopped would keep its
processes for as long as it stands still.
"""

import contextlib
import os
import select
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BEAT = b"."
CHUNK_BYTES = 4_096


@dataclass(frozen=True)
class Guard:
    """The agent's end of a pipe to its guard, who watches as long as it is open."""

    write_fd: int

    def beat(self) -> None:
        """Says that the agent is there."""
        # A guard that is gone guards nothing, and one that stands still has a full pipe.
        with contextlib.suppress(OSError):
            os.write(self.write_fd, BEAT)


def start_guard(folder: Path, silence_seconds: float, shut: Sequence[int]) -> Guard:
    """Forks the guard of this process, which has one thread still; the guard shuts its copies of these descriptors."""
    read_fd, write_fd = os.pipe()
    agent_pid = os.getpid()
    if os.fork():
        os.close(read_fd)
        os.set_blocking(write_fd, False)
        return Guard(write_fd)
    try:
        # What ends the agent's process group or session must leave the guard.
        os.setsid()
        _shut((write_fd, *shut))
        _watch(read_fd, agent_pid, silence_seconds)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _shut(fds: Sequence[int]) -> None:
    """Leaves nothing open by which others wait for the agent's end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for fd in {nothing, *fds} - {0, 1, 2}:
        with contextlib.suppress(OSError):
            os.close(fd)


def _watch(read_fd: int, agent_pid: int, silence_seconds: float) -> None:
    """Returns when the agent has ended; ends it when it was silent for so long."""
    while select.select([read_fd], [], [], silence_seconds)[0]:
        if not os.read(read_fd, CHUNK_BYTES):
            return
    os.kill(agent_pid, signal.SIGKILL)
    # Its processes must be gone before their folder is: the pipe ends with the agent.
    while os.read(read_fd, CHUNK_BYTES):
        pass
