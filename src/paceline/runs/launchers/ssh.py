"""Agents by ssh: `ssh HOST python -m paceline.runs.agent`, whose standard input and output are the channel.

`$PACELINE_SSH` names another command than `ssh`, such as `ssh -F FILE`. Nothing is asked at the terminal: keys or an
ssh agent let the user in.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from paceline.errors import UserError
from paceline.fleet import Fleet, FleetMachine
from paceline.runs.agent.channel import Channel, ChannelClosedError, SilenceError
from paceline.runs.agent.messages import GREETING
from paceline.runs.launchers.agents import Agent

COMMAND = "PACELINE_SSH"
CONNECT_SECONDS = 10
# From ssh's start to the first word of the agent: connecting, logging in, starting Python.
GREETING_SECONDS = 45.0
# Not as a master of other connections, which would end with it.
OPTIONS = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    f"ConnectTimeout={CONNECT_SECONDS}",
    "-o",
    "ForwardX11=no",
    "-o",
    "ControlMaster=no",
)
LAST_WORDS = 2_000
# Exit codes: ssh's own for what went wrong before the command, and a shell's for one that it did not find.
CODE_OF_SSH, CODE_NOT_FOUND = 255, 127


@contextlib.contextmanager
def open_ssh(fleet: Fleet) -> Iterator[tuple[Fleet, "SshEngine"]]:
    """The fleet as it is named, and what reaches its machines."""
    yield fleet, SshEngine(fleet)


class SshEngine:
    """Starts agents by ssh."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def call(self, number: int) -> "SshCall":
        """Begins to start the agent of a machine, and does not wait for it."""
        return SshCall(self._fleet.machines[number], number, self._fleet.lease_seconds)


class SshCall:
    """One client of ssh and the agent at its far end."""

    def __init__(self, machine: FleetMachine, number: int, lease_seconds: float) -> None:
        self.machine, self._number, self._lease_seconds = machine, number, lease_seconds
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the call
        try:
            self._process = subprocess.Popen(
                ssh_command(machine), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                # Ctrl-C is for the launcher, which then ends runs in their order.
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"machine {machine.name} cannot be reached: {error.filename}: {error.strerror}; install ssh, or name "
                f"it with ${COMMAND}"
            ) from None

    def connect(self) -> Agent:
        """The agent, once it has said its first word; raises `UserError` where it never will."""
        assert self._process.stdin is not None and self._process.stdout is not None
        channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        try:
            channel.skip_past(GREETING, GREETING_SECONDS)
        except SilenceError:
            raise UserError(
                f"machine {self.machine.name} did not answer within {GREETING_SECONDS:g} s; try: ssh "
                f"{self.machine.reached_at} true"
            ) from None
        except ChannelClosedError:
            raise UserError(self._why_not(self._process.wait(), channel.unread())) from None
        return Agent(self._number, self.machine, channel, self._lease_seconds, self.hang_up, self.last_words)

    def last_words(self) -> str:
        """The end of what ssh and the agent printed."""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    def hang_up(self) -> None:
        """Ends ssh; its far end hears of that by the end of its input."""
        self._process.kill()

    def close(self) -> None:
        """Leaves no process and no file behind."""
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def _why_not(self, code: int, said: bytes) -> str:
        words = self.last_words() or said.decode(errors="replace").strip().rpartition("\n")[2]
        name, host, python = self.machine.name, self.machine.reached_at, _python(self.machine)
        if code == CODE_OF_SSH:
            return f"machine {name} cannot be reached by ssh: {words}; try: ssh {host} true"
        if code == CODE_NOT_FOUND:
            return (
                f"machine {name} has no {python}; install Paceline there at the same place, or name its Python in a "
                f"fleet file (python = ...)"
            )
        if "No module named" in words:
            return f"machine {name} has no Paceline in {python} ({words}); install the same version there"
        return f"the agent of machine {name} ended with exit code {code} before its first word: {words}"


def ssh_command(machine: FleetMachine) -> list[str]:
    """The words that start an agent on the machine."""
    port = ("-p", str(machine.port)) if machine.port is not None else ()
    identity = ("-i", str(machine.identity.expanduser())) if machine.identity is not None else ()
    variables = [f"{name}={value}" for name, value in machine.environment.items()]
    # -P: a file in the home folder must not stand in for a module of the same name.
    agent = ["exec", "env", *variables, _python(machine), "-P", "-m", "paceline.runs.agent"]
    return [
        *shlex.split(os.environ.get(COMMAND, "ssh")), *OPTIONS, *port, *identity, *machine.ssh_options,
        machine.reached_at, shlex.join(agent),
    ]  # fmt: skip


def _python(machine: FleetMachine) -> str:
    return machine.python or sys.executable
