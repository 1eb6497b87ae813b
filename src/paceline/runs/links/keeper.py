"""A process that keeps the network of a run: it makes the namespaces, shapes their links, and ends with its parent.

`python -m paceline.runs.links.keeper CHANNEL_FD PARENT_PID` reads a `LinkRequest` from the channel, answers with
`LinksReady` and the socket on which the processes will meet, and stays until the channel is closed. Nothing of what it
makes has a name outside: when it is gone, however it ended, so is all of it once the run's processes are gone too.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.runs.processes import CODE_OK, die_with, leave

if __name__ == "__main__":
    # Before the other imports: a tool that is killed meanwhile must leave nobody alive.
    die_with(int(sys.argv[2]))

from paceline.runs.links import shaping
from paceline.runs.links.namespaces import become_root_of_own_user_namespace, inside, new_network
from paceline.runs.links.relay import Relay, Switch, open_tap
from paceline.runs.wire import MESSAGE_BYTES, LinkRequest, LinksReady

# Short turns that must come at once: a frame that is late is late for everybody.
NICENESS = -10
PR_SET_TIMERSLACK = 29  # prctl(2)
TIMER_SLACK_NANOSECONDS = 1_000


def keep(request: LinkRequest, channel: socket.socket) -> None:
    """Makes the network, tells the parent, and keeps it until the channel is closed."""
    user = [become_root_of_own_user_namespace()] if request.as_own_root else []
    switch = new_network()
    networks = [new_network() for _ in range(request.processes)]
    # With a relay no cable is needed; without one the kernel is the switch.
    taps = [_open_interface(network, rank, request) for rank, network in enumerate(networks)] if request.relay else []
    if not request.relay:
        _connect(switch, networks, request)
    with _meeting_socket(networks[0]) as listener:
        paths = [[_path(fd) for fd in (*user, network)] for network in networks]
        ready = LinksReady(
            namespaces=paths,
            addresses=[shaping.address(rank) for rank in range(request.processes)],
            interface=shaping.INTERFACE,
        )
        socket.send_fds(channel, [ready.model_dump_json().encode()], [listener.fileno()])
    if request.relay:
        os.sched_setaffinity(0, request.cores)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NANOSECONDS)
        Relay(taps, Switch(request.link, len(taps))).run(channel.fileno())
    else:
        channel.recv(1)


def _open_interface(network: int, rank: int, request: LinkRequest) -> int:
    with inside(network):
        tap = open_tap()
        _run("ip", shaping.interface_commands(rank, request.link, relayed=True))
        _without_ipv6(shaping.INTERFACE)
    return tap


def _connect(switch: int, networks: Sequence[int], request: LinkRequest) -> None:
    """Cables from each namespace to the switch, shaped at both ends."""
    with inside(switch):
        _run("ip", shaping.switch_commands())
    for rank, network in enumerate(networks):
        with inside(network):
            _run("ip", [*shaping.cable_commands(rank, _path(switch)), *shaping.interface_commands(rank, request.link)])
            _run("tc", shaping.sending_rules(request.link))
            _without_ipv6(shaping.INTERFACE)
    with inside(switch):
        for rank in range(len(networks)):
            _run("ip", shaping.port_commands(rank))
            _run("tc", shaping.receiving_rules(rank, request.link))


def _meeting_socket(network: int) -> socket.socket:
    """A listening socket in the first process's namespace, on a port that the system chose."""
    with inside(network):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((shaping.address(0), 0))
    listener.listen()
    return listener


def _path(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


def _run(program: str, lines: Sequence[str]) -> None:
    """Runs `ip` or `tc` on these lines; what it says of the first that fails is raised."""
    done = subprocess.run([program, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{program}: {' '.join(done.stderr.split())}")


def _without_ipv6(interface: str) -> None:
    """Keeps the kernel from sending announcements of its own over the link."""
    with contextlib.suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connected:
        keep(LinkRequest.model_validate_json(connected.recv(MESSAGE_BYTES)), connected)
    leave(CODE_OK)
