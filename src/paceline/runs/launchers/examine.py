"""Looks at every machine of a fleet without a run: whether it answers, what it has, its clock and its links."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from paceline.errors import UserError
from paceline.fleet import Fleet
from paceline.runs.agent.messages import LinkMeasured, ListenForLink, Listening, MachineFacts, MeasureLink
from paceline.runs.launchers.agents import Agent, Call, Engine, LostAgentError
from paceline.runs.launchers.open_fleet import machines_of, refuse_unlike
from paceline.runs.placement import Machine
from paceline.runs.wire import ClockOffset

LINK_SECONDS = 20.0


@dataclass
class ExaminedMachine:
    """What was found out about one machine."""

    name: str
    # Why it cannot be used, in words.
    problem: str | None = None
    facts: MachineFacts | None = None
    # What runs could use of it.
    machine: Machine | None = None
    clock: ClockOffset | None = None
    # The link to each other machine, by its name.
    links: dict[str, LinkMeasured] = field(default_factory=dict)


def examine_fleet(fleet: Fleet, engine: Engine, say: Callable[[str], None]) -> list[ExaminedMachine]:
    """Every machine, also those that do not answer; `say` is told what is being done."""
    examined = [ExaminedMachine(machine.name) for machine in fleet.machines]
    say(f"reaching {', '.join(fleet.names)}")
    with _agents(fleet, engine, examined) as agents:
        _compare(fleet, agents, examined)
        for agent in agents:
            with _noting(examined[agent.number]):
                examined[agent.number].clock = agent.clock()
        for agent, other in combinations(agents, 2):
            say(f"measuring the link between {agent.name} and {other.name}")
            with _noting(examined[agent.number]):
                link = measure_link(agent, other)
                examined[agent.number].links[other.name] = link
                examined[other.number].links[agent.name] = link
    return examined


@contextlib.contextmanager
def _agents(fleet: Fleet, engine: Engine, examined: list[ExaminedMachine]) -> Iterator[list[Agent]]:
    """The agents of the machines that answer; all are called at the same time."""
    calls, agents = dict[int, Call](), list[Agent]()
    try:
        for number in range(len(fleet.machines)):
            with _noting(examined[number]):
                calls[number] = engine.call(number)
        for number, call in calls.items():
            with _noting(examined[number]):
                agents.append(call.connect())
                agents[-1].begin()
        for agent in agents:
            with _noting(examined[agent.number]):
                examined[agent.number].facts = agent.meet()
        yield [agent for agent in agents if examined[agent.number].facts is not None]
    finally:
        threads = [threading.Thread(target=agent.close) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for call in calls.values():
            call.hang_up()
            call.close()


def _compare(fleet: Fleet, agents: list[Agent], examined: list[ExaminedMachine]) -> None:
    """Notes what a run would refuse, at the machine that differs from the first."""
    for number, agent in enumerate(agents):
        with _noting(examined[agent.number]):
            refuse_unlike([agents[0], agent] if number else [agent])
    if not agents:
        return
    here = fleet.model_copy(update={"machines": tuple(agent.machine for agent in agents)})
    try:
        machines = machines_of(here, agents)
    except UserError as error:
        examined[agents[0].number].problem = str(error)
        return
    for agent, machine in zip(agents, machines, strict=True):
        examined[agent.number].machine = machine


def measure_link(agent: Agent, other: Agent) -> LinkMeasured:
    """The link between two machines, by a short transfer from the one to the other."""
    other.send(ListenForLink())
    listening = other.await_answer(Listening, LINK_SECONDS)
    agent.send(MeasureLink(address=other.facts.address, port=listening.port, word=listening.word))
    return agent.await_answer(LinkMeasured, LINK_SECONDS)


@contextlib.contextmanager
def _noting(machine: ExaminedMachine) -> Iterator[None]:
    """Keeps the first problem of a machine; the others are looked at all the same."""
    try:
        yield
    except (UserError, LostAgentError) as error:
        machine.problem = machine.problem or str(error)
