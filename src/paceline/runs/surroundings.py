"""What the machines of a run read beside its processes ─► findings, energy and environment of the record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.record import Finding, GpuUse, MachineRecord
from paceline.runs.meters.energy import EnergyMeter, join_meters
from paceline.runs.meters.gpus import gpu_findings
from paceline.runs.meters.load import Reading, other_load_finding, with_run_seconds
from paceline.runs.wire import MachineReport
from paceline.units import format_names

# Fields of a machine's environment that the environment of a run on several machines lists for each.
LISTED = ("cpu", "cores", "memory_bytes", "gpus", "kernel", "libc", "governor")


@dataclass(frozen=True)
class Surroundings:
    """What the launcher knows of a run beside what its processes left."""

    started_at: str
    # When the first process was started, in nanoseconds of the launcher's clock.
    launched: int
    wall_seconds: float
    environment: dict[str, Any]
    findings: Sequence[Finding] = ()
    energy: EnergyMeter | None = None
    gpus: tuple[GpuUse, ...] = ()
    parameters: int | None = None
    # The machines of a fleet that the run was on, in the order of their numbers; none for the launcher's own.
    machines: tuple[MachineReport, ...] = ()


def machine_findings(
    machines: Sequence[MachineReport], longest_run_queue_share: float, launcher: tuple[str, Reading, Reading] | None
) -> list[Finding]:
    """Findings on what others did on each host, and on GPUs; several agents of one host are looked at together.

    `launcher` is the boot id and the readings of the launcher's own host, whose CPU seconds are the run's, too.
    """
    findings = [
        finding for machine in machines for finding in (*gpu_findings(machine.gpus, machine.name), *machine.findings)
    ]
    hosts: dict[str, list[MachineReport]] = {}
    for machine in machines:
        hosts.setdefault(machine.boot_id, []).append(machine)
    for boot_id, group in hosts.items():
        loads = [machine.load for machine in group if machine.load is not None]
        if not loads:
            continue
        beside = loads[1:] + ([launcher[1:]] if launcher is not None and launcher[0] == boot_id else [])
        start, end = (with_run_seconds(loads[0][edge], [load[edge] for load in beside]) for edge in (0, 1))
        name = format_names(_names(group))
        finding = other_load_finding(start, end, longest_run_queue_share, name)
        findings += [finding] if finding is not None else []
    return findings


def one_host_finding(machines: Sequence[MachineReport]) -> list[Finding]:
    """A finding that machines of the fleet are one computer, so that what goes between them never leaves it."""
    hosts: dict[str, list[MachineReport]] = {}
    for machine in machines:
        hosts.setdefault(machine.boot_id, []).append(machine)
    shared = [_names(group) for group in hosts.values() if len(_names(group)) > 1]
    return [
        Finding(
            code="one_host",
            text=f"{format_names(names)} are the same computer: each has some of its cores",
            hint="what they send each other never leaves it; its times are not those of a network",
        )
        for names in shared
    ]


def _names(machines: Sequence[MachineReport]) -> list[str]:
    """The names of machines, each once: processes that another launcher started may share one."""
    return list(dict.fromkeys(machine.name for machine in machines))


def joined_energy(machines: Sequence[MachineReport]) -> EnergyMeter | None:
    """The energy of all machines on the launcher's clock; the processor of a host is counted once."""
    meters, hosts = [], set[str]()
    for machine in machines:
        if machine.energy is None:
            continue
        if machine.energy.source == "nvml" or machine.boot_id not in hosts:
            readings = [(at - machine.clock.offset, joules) for at, joules in machine.energy_readings]
            meters.append(EnergyMeter(machine.energy, None, readings))
        hosts.add(machine.boot_id)
    return join_meters(meters)


def joined_environment(machines: Sequence[MachineReport]) -> dict[str, Any]:
    """The environment of the first machine, whose versions the others have too, and each kind of machine once."""
    if len(machines) == 1 and not machines[0].name:
        return machines[0].environment
    listed = list[dict[str, Any]]()
    for machine in machines:
        kind = {name: machine.environment.get(name) for name in LISTED}
        listed += [kind] if kind not in listed else []
    hosts = {machine.name: machine.environment.get("host") for machine in machines}
    return {**machines[0].environment, "machines": listed, "machine_hosts": hosts}


def joined_gpus(machines: Sequence[MachineReport]) -> tuple[GpuUse, ...]:
    """The GPUs of all machines, each with the name of its machine."""
    return tuple(use.model_copy(update={"machine": machine.name}) for machine in machines for use in machine.gpus)


def machine_records(machines: Sequence[MachineReport]) -> tuple[MachineRecord, ...]:
    """The machines as the record keeps them, each once."""
    named = {machine.name: machine for machine in reversed(machines)}
    return tuple(
        MachineRecord(
            name=machine.name, address=machine.address, host=str(machine.environment.get("host")),
            clock_offset_seconds=machine.clock.offset / 1e9, clock_error_seconds=machine.clock.error / 1e9,
        )
        for machine in map(named.__getitem__, _names(machines))
    )  # fmt: skip
