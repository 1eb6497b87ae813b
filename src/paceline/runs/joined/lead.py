"""The first process of a job that something else started: gathers the others, and runs a study in all of them."""

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from paceline.contract.context import LOOPBACK, Place, Process
from paceline.errors import UserError
from paceline.fleet import Fleet, FleetMachine
from paceline.plan import complete
from paceline.refusals import process_count
from paceline.runs.agent.dial_back import Reception
from paceline.runs.fleets import RemoteMachines
from paceline.runs.joined import Meeting, Membership
from paceline.runs.joined.member import GATHER_SECONDS
from paceline.runs.launchers.agents import Agent
from paceline.runs.launchers.dialled import DialledCall, ends_of
from paceline.runs.launchers.open_fleet import OpenFleet, refuse_unlike
from paceline.runs.placement import Machine, lay_out_one_each, shares_of_hosts
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.study import Study

ALL_INTERFACES = "0.0.0.0"
# Set for the worker's process of rank 0, which is a child of the process that leads: the number of the latter.
LED_BY = "PACELINE_JOIN_LED_BY"
# The user's choice of a network interface, as PyTorch reads it.
INTERFACE = "GLOO_SOCKET_IFNAME"


def sized(study: Study, membership: Membership) -> Study:
    """The study with as many workers as make one process of each that was started, unless it says how many."""
    if {"workers", "layout"} & {*study.fixed, *study.factors}:
        _check_processes(study, membership)
        return study
    for workers in range(membership.world, 0, -1):
        trial = study.with_fields({"workers": workers})
        if _processes(trial, membership) == {membership.world}:
            return trial
    _check_processes(study.with_fields({"workers": membership.world}), membership)
    return study


def specs_of(study: Study, membership: Membership) -> list[RunSpec]:
    """The runs of a study as they are in these processes; the machines have no names yet."""
    several = f"*{membership.world}" if membership.world > 1 else "?"
    return [complete(spec.model_copy(update={"machines": several})) for spec in study.specs()]


def _processes(study: Study, membership: Membership) -> set[int]:
    return {process_count(spec) for spec in specs_of(study, membership)}


def _check_processes(study: Study, membership: Membership) -> None:
    """Refuses runs that have more or fewer processes than were started."""
    for spec in specs_of(study, membership):
        count = process_count(spec)
        if count != membership.world:
            alone = strategy(spec.strategy).needs.one_machine
            name = f"{spec.strategy} has all its workers in one process" if alone else (
                f"{spec.spread_over} has {count} process{'es' if count > 1 else ''}"
            )  # fmt: skip
            raise UserError(
                f"{name}, and {membership.launcher} started {membership.world}; start {count}, or choose another "
                f"strategy or number of --workers"
            )


class JoinedFleet(OpenFleet):
    """The processes of a job, each as a machine that holds one worker."""

    def __init__(self, membership: Membership, meeting: Meeting, reception: Reception) -> None:
        interface = os.environ.get(INTERFACE)
        numbered = [FleetMachine(name=f"rank-{rank}", interface=interface) for rank in range(membership.world)]
        fleet = Fleet(engine="joined", machines=tuple(numbered))
        super().__init__(fleet, JoinedEngine(fleet, membership.launcher, meeting, reception))

    def meet(self) -> None:
        """Waits for all processes; raises `UserError` where one does not come or cannot be used."""
        self._calls = {number: self._engine.call(number) for number in range(len(self.fleet.machines))}
        self.agents = [call.connect() for call in self._calls.values()]
        for agent, address in zip(self.agents, addresses_for_others(self.agents), strict=True):
            agent.machine = agent.machine.model_copy(update={"address": address})
            agent.begin()
        for agent in self.agents:
            facts = agent.meet()
            agent.machine = agent.machine.model_copy(update={"name": facts.host})
        self.fleet = self.fleet.model_copy(update={"machines": tuple(agent.machine for agent in self.agents)})
        refuse_unlike(self.agents)
        self.machines = machines_of_processes(self.agents)

    def lay_out(self, spec: RunSpec) -> tuple[Process, ...]:
        """One process of the run in each process of the job."""
        return lay_out_one_each(spec, self.machines)

    def send_files(self, spec: RunSpec, agents: list[Agent]) -> None:
        """Sends nothing: each process reads the model and the data where its own command line says."""

    @property
    def names(self) -> str:
        """The names of the machines, with the number of processes on each."""
        counts = Counter(self.fleet.names)
        return ",".join(f"{name}*{count}" if count > 1 else name for name, count in counts.items())


def machines_of_processes(agents: Sequence[Agent]) -> list[Machine]:
    """What each process may use: what its launcher gave it alone, or its share of what several were given together."""
    alike = [f"{agent.facts.boot_id} {agent.facts.cores}" for agent in agents]
    cores = shares_of_hosts(alike, [agent.facts.cores for agent in agents], [None] * len(agents), alone=True)
    visible = [f"{agent.facts.boot_id} {agent.facts.gpus}" for agent in agents]
    numbers = [tuple(range(len(agent.facts.gpus))) for agent in agents]
    gpus = shares_of_hosts(visible, numbers, [None] * len(agents), alone=False)
    return [
        Machine(Place(agent.number, agent.name, agent.facts.address, agent.facts.interface), *shares)
        for agent, *shares in zip(agents, cores, gpus, strict=True)
    ]


def addresses_for_others(agents: Sequence[Agent]) -> list[str | None]:
    """Where the processes reach each other: where each dialled from.

    One on the first process's machine may have come over loopback; others then reach it as they reached the first.
    """
    ends = [ends_of(agent.channel) for agent in agents]
    outer = next((here for here, _ in ends if not here.startswith("127.")), None)
    return [
        None if agent.machine.interface else outer if outer is not None and there.startswith("127.") else there
        for agent, (_, there) in zip(agents, ends, strict=True)
    ]


class JoinedEngine:
    """Starts nothing: the processes are there, or on their way."""

    def __init__(self, fleet: Fleet, launcher: str, meeting: Meeting, reception: Reception) -> None:
        self._fleet, self._launcher, self._reception = fleet, launcher, reception
        self._where = f"{meeting.host}:{meeting.port}"
        self._called: set[int] = set()

    def call(self, number: int) -> DialledCall:
        """Waits for a process; one that is lost was started by another, who alone can start it again."""
        if number in self._called:
            raise UserError(f"it is process {number} of {self._launcher}, which Paceline cannot start again")
        self._called.add(number)
        program = JoinedProcess(f"process {number} of {self._launcher}", self._where)
        machine = self._fleet.machines[number]
        return DialledCall(machine, number, self._fleet.lease_seconds, self._reception, program, GATHER_SECONDS)


class JoinedProcess:
    """A process that another launcher started, and will end."""

    def __init__(self, name: str, where: str) -> None:
        self._name, self._where = name, where

    def ended(self) -> str | None:
        """Nothing: who does not come is missed after a while."""
        return None

    def last_words(self) -> str:
        """Which process it is; what it printed is with its launcher."""
        return self._name

    def way(self) -> str:
        """Where it dials."""
        return f"rank 0 at {self._where}: name its machine with --host, or a free port of it with --port"

    def end(self) -> None:
        """Leaves it to itself: without a connection it ends."""

    def close(self) -> None:
        """Has nothing to clear away."""


class JoinedMachines(RemoteMachines):
    """The machines of a job's processes."""

    def __init__(self, fleet: JoinedFleet) -> None:
        super().__init__(fleet)
        self.names = fleet.names
        self._joined = fleet

    @property
    def lost(self) -> bool:
        """Whether a process is gone, so that the launcher will soon end the others."""
        return any(agent.lost is not None for agent in self._joined.agents)


@contextlib.contextmanager
def gathered(membership: Membership, meeting: Meeting) -> Iterator[JoinedMachines]:
    """All processes of the job, ready for runs; they end with the context."""
    try:
        address = LOOPBACK if meeting.on_one_machine else ALL_INTERFACES
        reception = Reception(address, membership.world, meeting.port, meeting.key)
    except OSError as error:
        raise UserError(
            f"rank 0 cannot listen at port {meeting.port}: {error.strerror}; name another with --port, the same for all"
        ) from None
    with contextlib.ExitStack() as stack:
        stack.callback(reception.close)
        stack.enter_context(_worker_of_this_process())
        fleet = JoinedFleet(membership, meeting, reception)
        stack.callback(fleet.close)
        fleet.meet()
        # Nobody else is expected.
        reception.close()
        yield JoinedMachines(fleet)


@contextlib.contextmanager
def _worker_of_this_process() -> Iterator[None]:
    """The same command once more, as the process that holds rank 0's worker; it dies with this one."""
    words = [sys.executable, "-P", "-m", "paceline", *sys.argv[1:]]
    child = subprocess.Popen(words, env={**os.environ, LED_BY: str(os.getpid())}, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()
