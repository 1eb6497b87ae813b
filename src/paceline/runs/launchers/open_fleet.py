"""A fleet while a study runs on it: its agents, what of each machine runs may use, and the files that it was sent."""

import threading
from pathlib import Path

from paceline.contract.context import LOOPBACK_INTERFACE, Place, Process
from paceline.data import data_source
from paceline.errors import DataError, UserError
from paceline.fleet import Fleet
from paceline.runs.agent.facts import data_digests
from paceline.runs.agent.files import file_parts
from paceline.runs.agent.session import DATA, MODELS
from paceline.runs.launchers.agents import Agent, Call, Engine
from paceline.runs.placement import Machine, lay_out_over, shares_of_hosts
from paceline.source_files import files_by_place
from paceline.spec import ModelFile, RunSpec
from paceline.systems import System
from paceline.systems.local import framework_version
from paceline.workloads.user_model import USER_DATA


class OpenFleet:
    """The machines of a fleet whose agents are there, for all runs of a study."""

    def __init__(self, fleet: Fleet, engine: Engine) -> None:
        self.fleet, self._engine = fleet, engine
        self._calls: dict[int, Call] = {}
        self.agents: list[Agent] = []
        self._sent: set[tuple[int, str]] = set()

    def meet(self) -> None:
        """Starts the agents of all machines at the same time; raises `UserError` where one cannot be used."""
        for number in range(len(self.fleet.machines)):
            # One after another, so that an interrupt finds all that have begun.
            self._calls[number] = self._engine.call(number)
        self.agents = [call.connect() for call in self._calls.values()]
        for agent in self.agents:
            agent.begin()
        for agent in self.agents:
            agent.meet()
        refuse_unlike(self.agents)
        self.machines = machines_of(self.fleet, self.agents)

    def renew(self) -> None:
        """Starts the agents of lost machines again, so that one loss does not end a study."""
        for agent in [agent for agent in self.agents if agent.lost is not None]:
            number = agent.number
            agent.close()
            self._calls[number].close()
            self._sent = {mark for mark in self._sent if mark[0] != number}
            try:
                self._calls[number] = self._engine.call(number)
                fresh = self._calls[number].connect()
                fresh.begin()
                fresh.meet()
            except UserError as error:
                agent.lost = f"machine {agent.name} is lost, and could not be reached again: {error}"
                continue
            self.agents[number] = fresh

    def close(self) -> None:
        """Ends all agents."""
        threads = [threading.Thread(target=agent.close) for agent in self.agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for call in self._calls.values():
            call.hang_up()
            call.close()

    @property
    def system(self) -> System:
        """All machines as one, for the checks of a plan."""
        first = self.agents[0].facts
        hosts = [agent.facts.boot_id for agent in self.agents]
        # Machines of one host may share its cores.
        cores = {(host, core) for host, machine in zip(hosts, self.machines, strict=True) for core in machine.cores}
        # A GPU of the fleet is one that runs may use.
        gpus = [
            gpu
            for agent, machine in zip(self.agents, self.machines, strict=True)
            for number, gpu in enumerate(agent.facts.gpus)
            if number in machine.gpus
        ]
        memory = min(agent.facts.memory_bytes for agent in self.agents)
        return System(
            first.cpu,
            tuple(range(len(cores))),
            memory,
            tuple(gpus),
            "slices are of this machine's GPU",
            first.frameworks,
        )

    def lay_out(self, spec: RunSpec) -> tuple[Process, ...]:
        """The processes of a run, each on its machine."""
        return lay_out_over(spec, self.machines, self.fleet.ranks == "spread")

    def send_files(self, spec: RunSpec, agents: list[Agent]) -> None:
        """Makes sure that the run's model file and data set are on these machines."""
        for agent in agents:
            if spec.model is not None:
                self.send_model(agent, spec.model)
            if spec.dataset not in (None, USER_DATA):
                self._send_data(agent, str(spec.dataset))

    def send_model(self, agent: Agent, model: ModelFile) -> None:
        """Sends a user's model file and the user's modules that it imports, unless they are there."""
        for place, file in files_by_place(model.path).items():
            self._send(agent, file, f"{MODELS}/{model.digest}/{place}")

    def _send_data(self, agent: Agent, name: str) -> None:
        files = data_source(name).files() or ()
        if name not in agent.facts.data:
            for file in files:
                self._send(agent, file, f"{DATA}/{file.name}")
            return
        if files and agent.facts.data[name] != data_digests()[name]:
            raise DataError(
                f"data set {name} on machine {agent.name} is not that of this machine (their digests differ); "
                f"remove it there, and Paceline sends its own"
            )

    def _send(self, agent: Agent, file: Path, name: str) -> None:
        mark = (agent.number, f"{name} {file.stat().st_mtime_ns}")
        if mark in self._sent:
            return
        for part in file_parts(file, name):
            agent.send(part)
        self._sent.add(mark)


def refuse_unlike(agents: list[Agent]) -> None:
    """Refuses machines whose Paceline, Python or frameworks have other versions than those of the first."""
    ours = framework_version("paceline")
    unlike = next((agent for agent in agents if agent.facts.paceline != ours), None)
    if unlike is not None:
        raise UserError(
            f"machine {unlike.name} has Paceline {unlike.facts.paceline} and this one {ours}; install the same there"
        )
    first = agents[0]
    for agent in agents[1:]:
        pairs: list[tuple[str, str | None, str | None]] = [("Python", first.facts.python, agent.facts.python)]
        names = sorted({*first.facts.frameworks, *agent.facts.frameworks})
        pairs += [(name, first.facts.frameworks.get(name), agent.facts.frameworks.get(name)) for name in names]
        for what, here, there in pairs:
            if here != there:
                raise UserError(
                    f"machine {first.name} has {_version(what, here)} and machine {agent.name} "
                    f"{_version(what, there)}; install the same on both, or leave one of them out"
                )


def _version(what: str, version: str | None) -> str:
    return f"{what} {version}" if version else f"no {what}"


def machines_of(fleet: Fleet, agents: list[Agent]) -> list[Machine]:
    """What runs can use of each machine; machines that are one host get different cores and GPUs."""
    loopback = [agent for agent in agents if agent.facts.interface == LOOPBACK_INTERFACE]
    if len(agents) > 1 and loopback and len({agent.facts.boot_id for agent in agents}) > 1:
        raise UserError(
            f"machine {loopback[0].name} is known at {loopback[0].facts.address}, which other machines cannot reach; "
            f"give its address in a fleet file (address = ...)"
        )
    hosts = [agent.facts.boot_id for agent in agents]
    cores = shares_of_hosts(
        hosts, [agent.facts.cores for agent in agents], [machine.cores for machine in fleet.machines], alone=True
    )
    gpus = shares_of_hosts(
        hosts, [tuple(range(len(agent.facts.gpus))) for agent in agents],
        [machine.gpus for machine in fleet.machines], alone=False,
    )  # fmt: skip
    return [
        Machine(Place(agent.number, agent.name, agent.facts.address, agent.facts.interface), *shares)
        for agent, *shares in zip(agents, cores, gpus, strict=True)
    ]
