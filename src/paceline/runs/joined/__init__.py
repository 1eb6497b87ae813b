"""Runs in processes that something else started: one file here reads the environment of each such launcher.

`paceline join` is what the launcher starts. Every process holds one worker of the run; the first one also leads, and
stores the record.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.catalogue import discover
from paceline.contract.context import LOOPBACK
from paceline.errors import UserError

# A word that only the processes of the job know, where the launcher hands none to all of them.
SECRET = "PACELINE_JOIN_SECRET"
# Ports that are not given away to clients (ip_local_port_range begins at 32768) and belong to no well-known service.
FIRST_PORT, PORTS = 20_000, 10_000
LAST_PORT = 65_535


@dataclass(frozen=True)
class Membership:
    """What a launcher says to one of the processes that it started."""

    launcher: str
    rank: int
    world: int
    # What tells this job from others: the port and the key are made of it where nobody says them.
    job: str
    # Where the first process is, and a port of it that is free.
    host: str | None = None
    port: int | None = None
    # Whether all processes are on one machine.
    on_one_machine: bool = False


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a job find the first one, and what they prove to each other that they belong to it."""

    host: str
    port: int
    key: bytes
    on_one_machine: bool


@dataclass(frozen=True)
class Reader:
    """Reads the environment that one launcher leaves to its processes."""

    name: str
    # How it is used, for the message that there is none.
    example: str
    # Gives None where the launcher is another one.
    read: Callable[[Mapping[str, str]], Membership | None]
    # Of several that fit, the one that was started by the others is the first: torchrun under srun.
    place: int


def readers() -> list[Reader]:
    """All readers, those of the innermost launchers first."""
    return sorted(discover(__name__, "READER", Reader).values(), key=lambda reader: reader.place)


def find_membership(environment: Mapping[str, str] = os.environ) -> Membership:
    """What the launcher of this process said; raises `UserError` where none is known."""
    for reader in readers():
        membership = reader.read(environment)
        if membership is None:
            continue
        if not 0 <= membership.rank < membership.world:
            raise UserError(f"{reader.name} says rank {membership.rank} of {membership.world}; ranks begin at 0")
        return membership
    raise UserError(
        f"paceline join was started by no launcher that it knows; use such as {readers()[0].example}, or paceline run"
    )


def meeting_of(membership: Membership, host: str | None, port: int | None, environment: Mapping[str, str]) -> Meeting:
    """Where the processes meet: as the options say, else the launcher, else derived from the name of the job."""
    launcher, job = membership.launcher, membership.job
    host = host or (LOOPBACK if membership.on_one_machine else membership.host)
    if host is None:
        raise UserError(f"{launcher} does not say where rank 0 is; name its machine with --host")
    port = port or membership.port
    if port is not None and not 0 < port <= LAST_PORT:
        raise UserError(f"{launcher} says port {port}, and ports end at {LAST_PORT}; name a free one with --port")
    if port is None and not job:
        raise UserError(f"{launcher} gives its job no name to derive a port from; name a free one with --port")
    secret = environment.get(SECRET) or f"{launcher} {job}"
    key = hashlib.sha256(f"paceline join {secret}".encode()).digest()
    return Meeting(host, port or derived_port(f"{launcher} {job}"), key, membership.on_one_machine)


def derived_port(text: str) -> int:
    """A port that all processes of a job come to, and two jobs of a machine hardly ever."""
    return FIRST_PORT + int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % PORTS


def whole_number(environment: Mapping[str, str], name: str) -> int:
    """The number that a variable holds; raises `UserError` where it holds none."""
    text = environment.get(name, "")
    if not text.isdecimal():
        raise UserError(f"the environment variable {name} is {text!r}, which is no number; see what the launcher sets")
    return int(text)
