"""Agents that dial back to the launcher, for engines whose own channel does not say who is at the other end."""

import contextlib
import os
import socket
import time
from typing import Protocol

from paceline.errors import UserError
from paceline.fleet import FleetMachine
from paceline.runs.agent.channel import Channel, SilenceError
from paceline.runs.agent.dial_back import Reception
from paceline.runs.launchers.agents import Agent

# From the engine's order to the agent's first word: finding a place for it, starting Python, dialling.
DIAL_BACK_SECONDS = 60.0
POLL_SECONDS = 0.1


class AgentProgram(Protocol):
    """What an engine started for one agent, such as a client of Slurm."""

    def ended(self) -> str | None:
        """Why it ended, in words; None while it runs."""

    def last_words(self) -> str:
        """The end of what it printed."""

    def way(self) -> str:
        """Where the agent dials, for the message that it did not."""

    def end(self) -> None:
        """Ends it and the agent, and does not wait for that."""

    def close(self) -> None:
        """Waits for its end, and leaves nothing behind."""


class DialledCall:
    """An agent that was started by a program of the engine's and dials back to the reception."""

    def __init__(
        self, machine: FleetMachine, number: int, lease_seconds: float, reception: Reception, program: AgentProgram,
        patience_seconds: float = DIAL_BACK_SECONDS,
    ) -> None:  # fmt: skip
        self.machine, self._number, self._lease_seconds = machine, number, lease_seconds
        self._reception, self._program, self._patience_seconds = reception, program, patience_seconds
        self._channel: Channel | None = None

    def connect(self) -> Agent:
        """The agent, once it has dialled; raises `UserError` where it never will."""
        until = time.monotonic() + self._patience_seconds
        while self._channel is None:
            why = self._program.ended()
            with contextlib.suppress(SilenceError):
                self._channel = self._reception.await_agent(self._number, POLL_SECONDS)
            if self._channel is None and why is not None:
                raise UserError(f"machine {self.machine.name} cannot be used: {why}")
            if self._channel is None and time.monotonic() > until:
                raise UserError(
                    f"machine {self.machine.name} did not dial back within {self._patience_seconds:g} s; it must be "
                    f"able to reach {self._program.way()}"
                )
        machine = self.machine.model_copy(update={"address": self._address_for_others(self._channel)})
        return Agent(self._number, machine, self._channel, self._lease_seconds, self.hang_up, self._program.last_words)

    def hang_up(self) -> None:
        """Ends the connection, which ends the agent, and the engine's program."""
        if self._channel is not None:
            with contextlib.suppress(OSError), _socket_of(self._channel) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        self._program.end()

    def close(self) -> None:
        """Leaves no process and no connection behind."""
        self._program.close()
        if self._channel is not None:
            self._channel.close()

    def _address_for_others(self, channel: Channel) -> str | None:
        """Where the other machines reach it: as the fleet says, else where it dialled from."""
        if self.machine.address is not None or self.machine.interface is not None:
            return self.machine.address
        return ends_of(channel)[1]


def ends_of(channel: Channel) -> tuple[str, str]:
    """The addresses of a connection: this machine's and that of the agent."""
    with _socket_of(channel) as connection:
        return connection.getsockname()[0], connection.getpeername()[0]


def _socket_of(channel: Channel) -> socket.socket:
    """The channel's connection; closing the socket leaves the channel open."""
    return socket.socket(fileno=os.dup(channel.read_fd))
