"""Opens a fleet for a study: this machine, or agents on others, and the launcher that each strategy's runs get."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from paceline.fleet import LOCAL, Fleet
from paceline.runs.launchers import Launcher
from paceline.runs.launchers.agents import Engine
from paceline.runs.launchers.fleet import FleetLauncher
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.launchers.open_fleet import OpenFleet
from paceline.runs.launchers.ray import open_ray
from paceline.runs.launchers.slurm import open_slurm
from paceline.runs.launchers.ssh import open_ssh
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import System, local_system

FRESH = LocalLauncher()
# Each gives the fleet with its machines named, and what starts agents on them.
ENGINES: dict[str, Callable[[Fleet], AbstractContextManager[tuple[Fleet, Engine]]]] = {
    "ssh": open_ssh, "slurm": open_slurm, "ray": open_ray,
}  # fmt: skip


class Machines(Protocol):
    """The machines of a study while it runs."""

    @property
    def names(self) -> str:
        """What runs on them carry as their machines; empty for the launcher's own."""

    @property
    def system(self) -> System:
        """What runs can use, over all machines."""

    def launchers(self, specs: Sequence[RunSpec]) -> Mapping[str, Launcher]:
        """The launcher of each strategy of these runs, by name."""


def shared_imports(specs: Sequence[RunSpec]) -> dict[str, bool]:
    """For each strategy: whether several runs share one import of its framework; a single one does not."""
    planned = {spec.strategy: strategy(spec.strategy) for spec in specs}
    runs = Counter(planned[spec.strategy].framework for spec in specs)
    return {name: each.framework is not None and runs[each.framework] > 1 for name, each in planned.items()}


class LocalMachine:
    """The machine of the launcher."""

    names = ""

    def __init__(self) -> None:
        self._servers = ForkServers()

    @property
    def system(self) -> System:
        """The machine at hand."""
        return local_system()

    def launchers(self, specs: Sequence[RunSpec]) -> dict[str, Launcher]:
        """Forks where an import is shared, and new interpreters else."""
        return {
            name: LocalLauncher(self._servers.starter(strategy(name))) if shared else FRESH
            for name, shared in shared_imports(specs).items()
        }

    def close(self) -> None:
        """Ends the fork servers."""
        self._servers.close()


class RemoteMachines:
    """Machines with an agent each."""

    def __init__(self, fleet: OpenFleet) -> None:
        self._fleet = fleet
        self.names = ",".join(fleet.fleet.names)

    @property
    def system(self) -> System:
        """All machines as one."""
        return self._fleet.system

    def launchers(self, specs: Sequence[RunSpec]) -> dict[str, Launcher]:
        """Launchers whose agents fork where an import is shared."""
        return {name: FleetLauncher(self._fleet, shared) for name, shared in shared_imports(specs).items()}


@contextlib.contextmanager
def open_machines(fleet: Fleet = LOCAL) -> Iterator[Machines]:
    """The machines of a fleet, which hold nothing any more when the context ends."""
    if fleet.engine == "local":
        local = LocalMachine()
        try:
            yield local
        finally:
            local.close()
        return
    with opened_fleet(fleet) as machines:
        yield RemoteMachines(machines)


@contextlib.contextmanager
def opened_fleet(fleet: Fleet) -> Iterator[OpenFleet]:
    """A fleet of other machines whose agents are there, and end with the context."""
    with ENGINES[fleet.engine](fleet) as (named, engine):
        machines = OpenFleet(named, engine)
        try:
            machines.meet()
            yield machines
        finally:
            machines.close()
