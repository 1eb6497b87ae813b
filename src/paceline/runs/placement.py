"""Which machine of a fleet each process of a run is on, with which cores and devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from paceline.contract.context import Place, Process
from paceline.contract.strategy import Role
from paceline.spec import RunSpec
from paceline.strategies import strategy


@dataclass(frozen=True)
class Machine:
    """A machine that runs can use: where its processes are reached, and the numbers of its cores and GPUs."""

    place: Place
    cores: tuple[int, ...]
    gpus: tuple[int, ...] = ()


def lay_out_over(spec: RunSpec, machines: Sequence[Machine], spread: bool = False) -> tuple[Process, ...]:
    """The processes of a run in the order of their ranks: machine after machine, so that neighbours share one.

    A machine is full when its cores, or on GPUs its GPUs, are taken; when all are full, it starts again with the first.
    Spread over the machines, each of them takes an equal share first.
    """
    roles = strategy(spec.strategy).needs.roles(spec)
    places = [_Filling(machine, spec, roles) for machine in machines]
    if spread:
        wanted = sum(_need(spec, role) * role.processes for role in roles)
        for place in places:
            place.room = min(place.room, ceil(wanted / len(machines)))
    world, processes, current = sum(role.processes for role in roles), list[Process](), 0
    for role in roles:
        for index in range(role.processes):
            need = _need(spec, role)
            current = _next_place(places, current, need)
            processes.append(places[current].add(len(processes), world, role, index, need))
    return tuple(processes)


def _next_place(places: Sequence["_Filling"], current: int, need: int) -> int:
    """The machine at hand while it has room, or else the next one that has."""
    in_turn = [(current + step) % len(places) for step in range(len(places))]
    fitting = next((number for number in in_turn if places[number].has_room(need)), None)
    if fitting is not None:
        return fitting
    if any(place.room < place.whole for place in places):
        # Equal shares are taken, and machines differ: from here on all of each counts.
        for place in places:
            place.room = place.whole
        return _next_place(places, current, need)
    # Everything is full: processes share from here on, on machines that could hold such a process at all.
    able = [number for number in (*in_turn[1:], current) if places[number].whole >= need]
    for number in able:
        places[number].used = 0
    if able:
        return able[0]
    return in_turn[min(1, len(places) - 1)] if places[current].assigned else current


def lay_out_one_each(spec: RunSpec, machines: Sequence[Machine]) -> tuple[Process, ...]:
    """The processes of a run where there is exactly one for each machine, in their order."""
    roles = strategy(spec.strategy).needs.roles(spec)
    members = [(role, index) for role in roles for index in range(role.processes)]
    return tuple(
        _Filling(machine, spec, [Role(role.name, 1, role.workers_each)]).add(rank, len(members), role, index, need=0)
        for rank, ((role, index), machine) in enumerate(zip(members, machines, strict=True))
    )


def _need(spec: RunSpec, role: Role) -> int:
    """Cores of a process, or on GPUs its GPUs: a process that only serves needs none of them."""
    if spec.device == "cpu":
        return role.workers_each * spec.cores_per_worker
    return role.workers_each if role.name == "worker" else 0


class _Filling:
    """A machine while processes are put on it."""

    def __init__(self, machine: Machine, spec: RunSpec, roles: Sequence[Role]) -> None:
        on_cores = spec.device == "cpu"
        # Cores or GPUs: those that are taken, those that may be, and those that there are.
        self.machine, self.used, self.whole = machine, 0, len(machine.cores if on_cores else machine.gpus)
        self.room = self.whole
        # A worker that computes on a GPU has several threads to feed it, so all cores are shared out.
        workers = sum(role.processes * role.workers_each for role in roles)
        shared = len(machine.cores) // max(1, min(workers, len(machine.gpus)))
        self.cores_per_worker = spec.cores_per_worker if on_cores else max(spec.cores_per_worker, shared)
        self.assigned = 0
        self.devices: dict[str, int] = {}

    def has_room(self, need: int) -> bool:
        """Whether one more process that needs so much fits."""
        return self.used + need <= self.room

    def add(self, rank: int, world: int, role: Role, index: int, need: int) -> Process:
        """One more process, with the next cores and devices of this machine."""
        cores, gpus = self.machine.cores, self.machine.gpus
        count = min(role.workers_each * self.cores_per_worker, len(cores))
        share = tuple(sorted({cores[(self.assigned + offset) % len(cores)] for offset in range(count)}))
        self.assigned += count
        self.used += need
        number = self.devices.get(role.name, 0)
        self.devices[role.name] = number + role.workers_each
        device = gpus[number % len(gpus)] if gpus else number
        place = self.machine.place
        return Process(rank, world, role.name, index, share, role.workers_each, place, device)


def shares_of_hosts(
    hosts: Sequence[str], devices: Sequence[tuple[int, ...]], limits: Sequence[int | None], alone: bool
) -> list[tuple[int, ...]]:
    """What each machine gets of its host's cores or GPUs: machines that are one host get different ones.

    `hosts` are boot ids and `limits` how many the fleet allows. With `alone`, a machine has at least one, which it then
    shares with another machine of a host that has too few.
    """
    shares: list[tuple[int, ...]] = [()] * len(hosts)
    for host in dict.fromkeys(hosts):
        members = [number for number, name in enumerate(hosts) if name == host]
        available, start = devices[members[0]], 0
        too_few = alone and len(available) < len(members)
        for place, member in enumerate(members):
            fair = (len(available) - start) // (len(members) - place)
            limit = limits[member]
            count = fair if limit is None else min(limit, len(available) - start)
            shares[member] = available[start : start + count]
            if alone and (too_few or not count):
                shares[member] = (available[place % len(available)],)
            start += count
    return shares
