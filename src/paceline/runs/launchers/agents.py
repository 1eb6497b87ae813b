"""The launcher's side of its agents: who is there, what they say, and when one is lost."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from paceline.errors import UserError
from paceline.fleet import FleetMachine
from paceline.runs.agent.channel import BEATS_OF_A_LEASE, Channel, ChannelClosedError, SilenceError, beating, stamp
from paceline.runs.agent.messages import FROM_AGENT, Beat, Leave, MachineFacts, Ping, Pong, Trouble, Welcome
from paceline.runs.meters.energy import WATTS_VARIABLE
from paceline.runs.wire import ClockOffset

Answer = TypeVar("Answer")
PINGS = 20
# How long an agent may take to import what it needs and to look at its machine.
FACTS_SECONDS = 60.0
LEAVE_SECONDS = 5.0
# Variables of the launcher that its agents need, too.
TRAVELLING = (WATTS_VARIABLE,)


class Call(Protocol):
    """An agent that an engine has begun to start."""

    def connect(self) -> "Agent":
        """The agent, once it has said its first word; raises `UserError` where it never will."""

    def hang_up(self) -> None:
        """Ends the agent and what the engine started for it, at once."""

    def close(self) -> None:
        """Leaves nothing behind, once the agent has ended."""


class Engine(Protocol):
    """A way to start agents on the machines of a fleet. An engine is one file here."""

    def call(self, number: int) -> Call:
        """Begins to start the agent of a machine, and does not wait for it."""


class LostAgentError(Exception):
    """An agent is gone; the message says how."""


@dataclass
class Agent:
    """One machine's agent, as the launcher sees it. Its thread reads what comes; the caller's takes it out in order."""

    number: int
    machine: FleetMachine
    channel: Channel
    lease_seconds: float
    # Ends what the engine started for it, such as a client of ssh.
    hang_up: Callable[[], None] = lambda: None
    # What its engine's program said, for the case that it ends early.
    last_words: Callable[[], str] = str
    inbox: "queue.SimpleQueue[Any]" = field(default_factory=queue.SimpleQueue)
    # Rings whenever something has come, for one who waits for several agents.
    bell: threading.Event = field(default_factory=threading.Event)
    lost: str | None = None
    _facts: MachineFacts | None = None
    _beats: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _listener: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name of its machine."""
        return self.machine.name

    @property
    def facts(self) -> MachineFacts:
        """What the machine said of itself."""
        assert self._facts is not None
        return self._facts

    def begin(self) -> None:
        """Says what the machine is called, and starts to listen."""
        machine = self.machine
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(
                Welcome(
                    machine=self.number, name=machine.name, lease_seconds=self.lease_seconds, address=machine.address,
                    interface=machine.interface,
                    environment={name: os.environ[name] for name in TRAVELLING if name in os.environ},
                )
            )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True, name=f"from {machine.name}")
        self._listener.start()
        beat = partial(self.channel.send, Beat())
        self._beats.enter_context(beating(beat, self.lease_seconds / BEATS_OF_A_LEASE))

    def meet(self) -> MachineFacts:
        """Waits until the machine has said what it is; raises `UserError` where it cannot be used."""
        try:
            self._facts = self.await_answer(MachineFacts, FACTS_SECONDS)
        except LostAgentError as error:
            raise UserError(f"{error}; try paceline doctor --on with it") from None
        return self._facts

    def send(self, message: Any) -> None:
        """Sends it, unless the agent is lost: whoever waits for the answer will hear of that."""
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(message)

    def await_answer(self, kind: type[Answer], seconds: float | None = None) -> Answer:
        """The next message of that kind; others are left out, as they are of something that is over."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                message = self.inbox.get(timeout=left)
            except queue.Empty:
                raise LostAgentError(f"machine {self.name} did not answer within {seconds:g} s") from None
            if isinstance(message, kind):
                return message
            self.complain_about(message)

    def complain_about(self, message: Any) -> None:
        """Raises what an agent could not do, or that it is lost."""
        if isinstance(message, Trouble) and message.user:
            raise UserError(message.text)
        if isinstance(message, Trouble):
            raise LostAgentError(f"machine {self.name}: {message.text}")
        if isinstance(message, LostAgentError):
            # The next one who asks must hear of it, too.
            self.inbox.put(message)
            raise message

    def clock(self, pings: int = PINGS) -> ClockOffset:
        """How far the machine's clock is ahead: by the quickest of several questions and answers."""
        best = ClockOffset(offset=0, error=1 << 62)
        for number in range(pings):
            sent = stamp()
            self.send(Ping(number=number))
            answer = self.await_answer(StampedPong, self.lease_seconds)
            pong, came = answer.pong, answer.came
            error = ((came - sent) - (pong.replied - pong.received)) // 2
            if error < best.error:
                best = ClockOffset(offset=((pong.received - sent) + (pong.replied - came)) // 2, error=error)
        return best

    def close(self) -> None:
        """Ends the agent and whatever the engine started for it."""
        self.send(Leave())
        self._beats.close()
        if self._listener is not None:
            self._listener.join(LEAVE_SECONDS)
        self.hang_up()
        if self._listener is not None:
            # What it reads from will be closed.
            self._listener.join(LEAVE_SECONDS)

    def _listen(self) -> None:
        try:
            while True:
                body = self.channel.receive(self.lease_seconds)
                came = stamp()
                message = FROM_AGENT.validate_json(body)
                if not isinstance(message, Beat):
                    self._put(StampedPong(message, came) if isinstance(message, Pong) else message)
        except SilenceError:
            self.lose(
                f"machine {self.name} is lost: no word from its agent for {self.lease_seconds:g} s "
                f"(the link is cut, or the machine stands still)"
            )
        except (ChannelClosedError, ValueError) as error:
            words = self.last_words().strip()
            self.lose(f"machine {self.name} is lost: its agent ended ({words or error})")

    def lose(self, reason: str) -> None:
        """Gives the agent up: whoever asks for it hears why."""
        self.lost = self.lost or reason
        self.hang_up()
        self._put(LostAgentError(self.lost))

    def _put(self, message: Any) -> None:
        self.inbox.put(message)
        self.bell.set()


@dataclass(frozen=True)
class StampedPong:
    """The answer to a ping, and when it came."""

    pong: Pong
    came: int
