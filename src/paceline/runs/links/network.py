"""The network of one run, from the launcher's side: a keeper process that makes it, and what processes need of it."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError
from paceline.link import NetworkLink
from paceline.runs.wire import MESSAGE_BYTES, LinkRequest, LinksReady
from paceline.systems.links import link_means

KEEPER = "paceline.runs.links.keeper"


@dataclass(frozen=True)
class LinkedNetwork:
    """Where the processes of a run are and meet: their namespaces, addresses and interface, and rank 0's socket."""

    ready: LinksReady
    listener: socket.socket
    keeper_pid: int


@contextlib.contextmanager
def linked_network(link: NetworkLink, processes: int, spare_cores: Sequence[int]) -> Iterator[LinkedNetwork]:
    """A network with that link between any two of so many processes; it is gone when the context ends.

    `spare_cores` are those that a relay may use where one is needed.
    """
    means = link_means()
    if isinstance(means, str):
        raise UserError(f"link {link.text}: {means}")
    request = LinkRequest(
        link=link, processes=processes, cores=tuple(spare_cores), as_own_root=means.as_own_root,
        relay=bool(link.delay_seconds) and not means.kernel_delays,
    )  # fmt: skip
    channel, keepers_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with channel, _log() as log:
        with keepers_end:
            keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", KEEPER, str(keepers_end.fileno()), str(os.getpid())],
                pass_fds=(keepers_end.fileno(),),
                # Ctrl-C is for the launcher, which ends the keeper when the run's processes are gone.
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            channel.send(request.model_dump_json().encode())
            message, fds, _flags, _address = socket.recv_fds(channel, MESSAGE_BYTES, 1)
            if not message:
                raise UserError(f"link {link.text} could not be made: {_last_line(log)}; try paceline doctor")
            with socket.socket(fileno=fds[0]) as listener:
                yield LinkedNetwork(LinksReady.model_validate_json(message), listener, keeper.pid)
        finally:
            channel.close()
            keeper.kill()
            keeper.wait()


@contextlib.contextmanager
def _log() -> Iterator[int]:
    """A file without a name for what the keeper's programs complain about."""
    fd = os.memfd_create("paceline-link")
    try:
        yield fd
    finally:
        os.close(fd)


def _last_line(log: int) -> str:
    lines = Path(f"/proc/self/fd/{log}").read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "its keeper ended without a word")
