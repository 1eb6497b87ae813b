"""Runs over the machines of a fleet: each run's processes are started by the agents, and meet at rank 0's address."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.contract.context import Process
from paceline.runs.agent.files import keep_part
from paceline.runs.agent.messages import (
    Codes,
    EndRun,
    FilePart,
    OpenRun,
    RunEnded,
    RunEvent,
    RunOpen,
    StartRun,
    Trouble,
)
from paceline.runs.agent.session import WEIGHTS
from paceline.runs.launchers.agents import Agent, LostAgentError
from paceline.runs.launchers.open_fleet import OpenFleet
from paceline.runs.wire import (
    ClockOffset,
    MachineReport,
    Published,
    RankError,
    RankResult,
    RunNews,
    RunOrders,
    UseEvent,
)
from paceline.spec import RunSpec
from paceline.systems import System

# How long agents may take to kill a run's processes and to send what they left.
END_SECONDS = 30.0


@dataclass(frozen=True)
class FleetLauncher:
    """Starts the processes of a run through the agents of a fleet."""

    fleet: OpenFleet
    # Whether agents keep a server that has imported the framework, for the runs to come.
    forked: bool = False

    def lay_out(self, spec: RunSpec, system: System) -> tuple[Process, ...]:
        """Processes over the machines of the fleet; the system is known from the agents."""
        return self.fleet.lay_out(spec)

    @contextlib.contextmanager
    def open(self, orders: RunOrders) -> Iterator["FleetGroup"]:
        """A group whose agents have everything ready, with the clocks of their machines measured."""
        self.fleet.renew()
        numbers = sorted({process.place.machine for process in orders.processes})
        agents = [self.fleet.agents[number] for number in numbers]
        bell = threading.Event()
        for agent in agents:
            agent.bell = bell
        group = FleetGroup(orders, agents, bell)
        self.fleet.send_files(orders.spec, agents)
        for agent in agents:
            agent.send(OpenRun(orders=orders, forked=self.forked))
        group.await_ready()
        try:
            yield group
        finally:
            group.kill()


@dataclass
class FleetGroup:
    """The processes of one run on the machines of a fleet."""

    orders: RunOrders
    agents: list[Agent]
    bell: threading.Event
    _port: int = 0
    _codes: dict[int, int] = field(default_factory=dict)
    _lost: dict[int, str] = field(default_factory=dict)
    _ended: dict[int, RunEnded] = field(default_factory=dict)
    _clocks: dict[int, tuple[ClockOffset, ClockOffset | None]] = field(default_factory=dict)
    _weights: list[FilePart] = field(default_factory=list)
    _over: bool = False

    def await_ready(self) -> None:
        """Waits until every agent has opened the run, and reads their clocks."""
        for agent in self.agents:
            with self._noting_loss(agent):
                # Imports take as long as they take; an agent that is gone says so, or is silent.
                opened = agent.await_answer(RunOpen)
                if opened.port is not None:
                    self._port = opened.port
        for agent in self.agents:
            with self._noting_loss(agent):
                self._clocks[agent.number] = (agent.clock(), None)

    def start(self) -> None:
        """Starts every process on every machine, unless one of the machines is lost already."""
        if self._lost:
            return
        host = self.orders.processes[0].place.address
        for agent in self.agents:
            agent.send(StartRun(host=host, port=self._port))

    def events(self, seconds: float) -> list[RunNews]:
        """The news that came within that time; what processes published is passed on to the other machines."""
        events = list[RunNews]()
        self.bell.wait(seconds)
        self.bell.clear()
        for agent in self.agents:
            for message in self._messages(agent):
                if isinstance(message, RunEvent):
                    event = message.event
                    known = {"machine": agent.number} if isinstance(event, UseEvent) else {}
                    events.append(event.model_copy(update=known))
                elif isinstance(message, Codes):
                    self._codes |= message.codes
                elif isinstance(message, Published):
                    self._pass_on(message, agent)
        return events

    def exit_codes(self) -> list[int | None]:
        """The exit code of each process as far as it is known."""
        return [self._codes.get(process.rank) for process in self.orders.processes]

    def troubles(self) -> list[str]:
        """Why machines were lost, or could not do what was asked of them."""
        return [self._lost[number] for number in sorted(self._lost)]

    def kill(self) -> None:
        """Ends the run on every machine that is left, and takes in what its processes left there."""
        if self._over:
            return
        self._over = True
        there = [agent for agent in self.agents if agent.lost is None]
        for agent in there:
            agent.send(EndRun(weights=self.orders.keep_weights))
        for agent in there:
            with self._noting_loss(agent):
                self._take_end(agent)
            with self._noting_loss(agent):
                before = self._clocks[agent.number][0]
                self._clocks[agent.number] = (before, agent.clock())

    def reports(self) -> list[RankResult | RankError | None]:
        """What each process left; nothing of those on a lost machine."""
        reports = {rank: report for ended in self._ended.values() for rank, report in ended.reports.items()}
        return [reports.get(process.rank) for process in self.orders.processes]

    def log_tails(self) -> list[str]:
        """The end of what each process printed."""
        tails = {rank: tail for ended in self._ended.values() for rank, tail in ended.log_tails.items()}
        return [tails.get(process.rank, "") for process in self.orders.processes]

    def machines(self) -> list[MachineReport]:
        """What the meters of each machine read, with its name and its clock; of a lost one, only what it is."""
        reports = []
        for agent in self.agents:
            facts, ended = agent.facts, self._ended.get(agent.number)
            report = ended.machine if ended is not None else MachineReport(
                boot_id=facts.boot_id, environment=facts.environment
            )  # fmt: skip
            update = {"name": agent.name, "address": facts.address, "clock": self._clock(agent.number)}
            reports.append(report.model_copy(update=update))
        return reports

    def save_weights(self, file: Path) -> None:
        """Writes the weights that came, if any did."""
        for part in self._weights:
            keep_part(part.model_copy(update={"name": file.name}), file.parent)

    def _clock(self, number: int) -> ClockOffset:
        """The mean of both measurements; what the clocks drifted between them may be wrong by half."""
        before, after = self._clocks.get(number, (ClockOffset(), None))
        if after is None:
            return before
        drift = abs(after.offset - before.offset) // 2
        return ClockOffset(offset=(before.offset + after.offset) // 2, error=max(before.error, after.error) + drift)

    def _messages(self, agent: Agent) -> Iterator[Any]:
        """What an agent has said since the last look."""
        while not agent.inbox.empty():
            message = agent.inbox.get()
            if isinstance(message, LostAgentError | Trouble):
                with self._noting_loss(agent):
                    agent.complain_about(message)
                return
            yield message

    def _pass_on(self, text: Published, sender: Agent) -> None:
        for agent in self.agents:
            if agent is not sender:
                agent.send(text)

    def _take_end(self, agent: Agent) -> None:
        while agent.number not in self._ended:
            try:
                message = agent.inbox.get(timeout=END_SECONDS)
            except queue.Empty:
                agent.lose(f"machine {agent.name} is lost: it did not end its processes within {END_SECONDS:g} s")
                continue
            if isinstance(message, RunEnded):
                self._ended[agent.number] = message
            elif isinstance(message, FilePart) and message.name == WEIGHTS:
                self._weights.append(message)
            else:
                agent.complain_about(message)

    @contextlib.contextmanager
    def _noting_loss(self, agent: Agent) -> Iterator[None]:
        try:
            yield
        except LostAgentError as error:
            self._lost.setdefault(agent.number, str(error))
