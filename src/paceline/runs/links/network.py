"""The network of one run, from the launcher's side: loopback, or a keeper process that makes one with a link."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.contract.context import Process
from paceline.errors import UserError
from paceline.link import NetworkLink
from paceline.record import Finding
from paceline.runs.processes import cpu_seconds, held_port
from paceline.runs.wire import MESSAGE_BYTES, LinkRequest, LinksReady, RunOrders
from paceline.systems.links import link_means

KEEPER = "paceline.runs.links.keeper"
# Above this share of its time on a core, a relay may hand frames over later than the link says.
BUSY_RELAY_SHARE = 0.5


@dataclass(frozen=True)
class Relay:
    """The process that carries the frames of a run, and what it had used when the run began."""

    pid: int
    began: float = field(default_factory=time.monotonic)
    cpu_seconds_before: float = 0.0

    def findings(self) -> list[Finding]:
        """A warning if it was so busy that the link may have been slower than stated."""
        seconds = time.monotonic() - self.began
        share = (cpu_seconds(self.pid) - self.cpu_seconds_before) / seconds if seconds > 0 else 0.0
        if share <= BUSY_RELAY_SHARE:
            return []
        text = f"the relay that delays frames was busy for {share:.0%} of the run, so links were slower than stated"
        return [Finding(code="busy_relay", text=text, hint="use a kernel with netem, a lower rate, or no delay")]


@dataclass(frozen=True)
class RunNetwork:
    """How the processes of a run reach each other: where each of them is, and the socket on which they meet."""

    processes: tuple[Process, ...]
    listener: socket.socket
    relay: Relay | None = None

    def cpu_seconds(self) -> float:
        """CPU seconds so far of the process that carries the frames, if there is one."""
        return cpu_seconds(self.relay.pid) if self.relay is not None else 0.0

    def findings(self) -> list[Finding]:
        """Warnings about the network, once the run is over."""
        return self.relay.findings() if self.relay is not None else []


@contextlib.contextmanager
def run_network(orders: RunOrders, cores: Sequence[int]) -> Iterator[RunNetwork]:
    """The network that a run asks for; it is gone when the context ends. A relay gets cores that no process has."""
    processes, link = orders.processes, orders.spec.link
    if link is None:
        with held_port(processes[0].place.address) as listener:
            yield RunNetwork(processes, listener)
        return
    used = {core for process in processes for core in process.cores}
    spare = [core for core in cores if core not in used] or list(cores)
    with linked_network(link, len(processes), spare) as (ready, listener, keeper_pid, relays):
        relay = Relay(keeper_pid, cpu_seconds_before=cpu_seconds(keeper_pid)) if relays else None
        yield RunNetwork(tuple(_placed(process, ready) for process in processes), listener, relay)


def _placed(process: Process, ready: LinksReady) -> Process:
    place = replace(
        process.place, address=ready.addresses[process.rank], interface=ready.interface,
        namespaces=tuple(ready.namespaces[process.rank]),
    )  # fmt: skip
    return replace(process, place=place)


@contextlib.contextmanager
def linked_network(
    link: NetworkLink, processes: int, relay_cores: Sequence[int]
) -> Iterator[tuple[LinksReady, socket.socket, int, bool]]:
    """Namespaces with that link between any two, the first one's listening socket, and the keeper; gone at the end.

    The last value says whether the keeper relays frames itself.
    """
    means = link_means()
    if isinstance(means, str):
        raise UserError(f"link {link.text}: {means}")
    relays = bool(link.delay_seconds) and not means.kernel_delays
    request = LinkRequest(
        link=link, processes=processes, cores=tuple(relay_cores), as_own_root=means.as_own_root, relay=relays
    )
    channel, keepers_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with channel, _log() as log:
        with keepers_end:
            keeper = _start_keeper(keepers_end.fileno(), log)
        try:
            message, fds = _ask(channel, request)
            if not message:
                keeper.wait()  # its last words come after it has closed the channel
                raise UserError(f"link {link.text} could not be made: {_last_line(log)}; try paceline doctor")
            with socket.socket(fileno=fds[0]) as listener:
                yield LinksReady.model_validate_json(message), listener, keeper.pid, relays
        finally:
            keeper.kill()
            keeper.wait()


def _ask(channel: socket.socket, request: LinkRequest) -> tuple[bytes, list[int]]:
    """What the keeper answers, with the file descriptors that it passes on; nothing if it has ended."""
    try:
        channel.send(request.model_dump_json().encode())
        message, fds, _flags, _address = socket.recv_fds(channel, MESSAGE_BYTES, 1)
    except ConnectionError:
        return b"", []
    return message, fds


def _start_keeper(channel_fd: int, log: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", KEEPER, str(channel_fd), str(os.getpid())],
        pass_fds=(channel_fd,),
        # Only a process with a single thread may enter a user namespace, and NumPy starts threads when it is imported.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        # Ctrl-C is for the launcher, which ends the keeper when the run's processes are gone.
        process_group=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )


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
    last = next((line.strip() for line in reversed(lines) if line.strip()), "its keeper ended without a word")
    return last.removeprefix("OSError: ")
