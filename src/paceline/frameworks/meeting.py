"""A port for each process of a run, for frameworks whose processes all listen: chosen by the system, held until used.

The launcher holds one port for the whole run (`Rendezvous`). Where each process needs its own, it binds one here, tells
the others through a file in the run's folder, and keeps it bound until the framework's server has bound it too; both
set SO_REUSEPORT, so no other program can get in between.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.contract.context import Context

POLL_SECONDS = 0.01


@contextlib.contextmanager
def held_ports(context: Context) -> Iterator[list[int]]:
    """The ports of all processes in rank order; this process's own stays bound while the context lasts."""
    folder, process = context.rendezvous.folder, context.process
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind((context.rendezvous.host, 0))
        _tell(folder, process.rank, own.getsockname()[1])
        deadline = time.monotonic() + context.spec.collective_timeout_seconds
        yield [_hear(folder, rank, deadline) for rank in range(process.world)]


def _file(folder: Path, rank: int) -> Path:
    return folder / f"port-{rank}"


def _tell(folder: Path, rank: int, port: int) -> None:
    draft = folder / f"port-{rank}.draft"
    draft.write_text(str(port))
    draft.replace(_file(folder, rank))


def _hear(folder: Path, rank: int, deadline: float) -> int:
    while not _file(folder, rank).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank} did not say its port within collective_timeout_seconds")
        time.sleep(POLL_SECONDS)
    return int(_file(folder, rank).read_text())
