"""Whose turn it is: a tool claims a run before it makes it, so that no two tools make the same run or measure at once.

A machine makes one run of a results file at a time: two would compete for the cores that they measure. A claim ends
with its run; one whose owner is gone ends by itself.
"""

import os
import platform
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Self

import psutil
from pydantic import ValidationError

from paceline.spec import Frozen

# Beyond the time limit of a run: starting, ending and storing it.
SLACK_SECONDS = 600.0
# Of what `proc(5)` says of /proc/PID/stat, counted from behind the name.
START_FIELD = 19
# Claims of this process that still hold.
_held: set[str] = set()


class Owner(Frozen):
    """The process that claimed a run: told from all others that ever had its number, on any machine."""

    host: str
    boot: str
    # Numbers of processes mean something within one namespace.
    namespace: str
    pid: int
    started: float
    claim: str

    @classmethod
    def here(cls) -> Self:
        """The process that asks, with a claim of its own."""
        names = {"host": platform.node(), "boot": _boot(), "namespace": _namespace()}
        return cls(**names, pid=os.getpid(), started=_started(os.getpid()), claim=secrets.token_hex(8))

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; where it cannot be seen from here, nobody knows."""
        if self.boot != _boot():
            return self.host == platform.node()
        if self.namespace != _namespace():
            return False
        if self.pid == os.getpid():
            return self.claim not in _held
        try:
            return _started(self.pid) != self.started or psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    @property
    def about(self) -> str:
        """The process in words."""
        return f"process {self.pid}" if self.boot == _boot() else f"process {self.pid} on {self.host}"


def claim(connection: sqlite3.Connection, key: str, repeat: int, limit_seconds: float) -> Owner:
    """Claims a run within a transaction; returns this process, or the owner that has to be waited for."""
    machine, now = _boot(), time.time()
    for held_on, held_key, held_repeat, text, until in connection.execute("SELECT * FROM claims").fetchall():
        owner = _read(text)
        unseen = owner is None or owner.boot != machine or owner.namespace != _namespace()
        if owner is None or owner.is_gone() or (unseen and now > until):
            connection.execute("DELETE FROM claims WHERE machine = ?", (held_on,))
        elif held_on == machine or (held_key, held_repeat) == (key, repeat):
            return owner
    owner = Owner.here()
    until = now + limit_seconds + SLACK_SECONDS
    connection.execute(
        "INSERT INTO claims VALUES (?, ?, ?, ?, ?)", (machine, key, repeat, owner.model_dump_json(), until)
    )
    _held.add(owner.claim)
    return owner


def _read(text: str) -> Owner | None:
    try:
        return Owner.model_validate_json(text)
    except ValidationError:
        return None


def is_here(owner: Owner) -> bool:
    """Whether the claim is of this process, and holds."""
    return owner.claim in _held


def release(connection: sqlite3.Connection, owner: Owner) -> None:
    """Ends a claim; what the file cannot be told now, the end of this process will."""
    _held.discard(owner.claim)
    connection.execute("DELETE FROM claims WHERE machine = ? AND owner = ?", (owner.boot, owner.model_dump_json()))


def _boot() -> str:
    """The kernel's name for the time since it started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()} {psutil.boot_time():.0f}"


def _started(pid: int) -> float:
    """When a process started, in ticks since the machine did: the clock of the day may be set anew meanwhile."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return float(psutil.Process(pid).create_time())
    # The name of the program, which may have spaces, is in brackets; the start is the twentieth field behind it.
    return float(status.rpartition(b")")[2].split()[START_FIELD])


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
