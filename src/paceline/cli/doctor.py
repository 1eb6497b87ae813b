"""`paceline doctor`: what this machine can run, or each machine of a fleet; what is missing and how to get it."""

from rich.markup import escape
from rich.table import Table

from paceline.cli.options import On
from paceline.cli.terminal import errors, output
from paceline.errors import UserError
from paceline.fleet import LOCAL, Fleet, parse_fleet
from paceline.runs.agent.messages import LinkMeasured
from paceline.runs.fleets import ENGINES
from paceline.runs.launchers.examine import ExaminedMachine, examine_fleet
from paceline.runs.meters.energy import rapl_counter, watts_per_core
from paceline.systems import System, local_system
from paceline.systems.links import TUN_DEVICE, link_means
from paceline.systems.local import FRAMEWORKS
from paceline.systems.nccl import LIBRARY, nccl_of, nccl_package, slice_link
from paceline.units import format_bytes, format_count, format_seconds

# Whether it is there, what it is, its state, and what to do about it.
Line = tuple[bool, str, str, str]
# Frameworks whose strategies train on slices, and what their links are called.
_ON_SLICES = ("torch", "jax")
_LINKS = {"p2p": "fast, through the GPU's memory", "socket": "slow, over loopback sockets"}
# Of the table of a fleet.
COLUMNS = ("machine", "address", "versions", "devices", "data", "clock", "link")
BITS = 8
_EXTRA = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax"}


def doctor(on: On = None) -> None:
    """What this machine can run, or each of a fleet: frameworks, devices, counters, links; what is missing."""
    fleet = parse_fleet(on)
    if fleet != LOCAL:
        examine(fleet)
        return
    system = local_system()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    lines = [
        *_hardware(system),
        *slice_links(system),
        *network_links(),
        *_frameworks(system),
        *_counters(system),
        *_data(),
    ]
    for mark, what, state, advice in lines:
        answer = escape(state) + (f"\n[dim]{escape(advice)}[/]" if advice else "")
        table.add_row("[green]✓[/]" if mark else "[yellow]–[/]", what, answer)
    output().print(table)


def _hardware(system: System) -> list[Line]:
    cores = len(system.cores)
    gpus = ", ".join(f"{gpu.name} ({format_bytes(gpu.memory_bytes)})" for gpu in system.gpus)
    sliced = "device cuda-slice: several workers on one GPU" if system.no_slices is None else "not here"
    few = "" if cores > 1 else "one core: every study is oversubscribed"
    return [
        (True, "processor", f"{system.cpu}, {cores} cores", few),
        (True, "memory", format_bytes(system.memory_bytes), ""),
        (bool(gpus), "GPU", gpus or "none", "" if gpus else "strategies run on CPU cores; device cuda is skipped"),
        (system.no_slices is None, "slices of a GPU", sliced, system.no_slices or ""),
    ]


def slice_links(system: System) -> list[Line]:
    """How slices of a GPU will talk under each framework that trains on them, why so, and how to get the fast link."""
    if system.no_slices is not None:
        return []
    lines = []
    for framework in (name for name in _ON_SLICES if name in system.frameworks):
        link = slice_link(nccl_of(framework), "auto")
        fast = link.transport == "p2p"
        state = f"with {framework}: {_LINKS[link.transport]}"
        lines.append((fast, "link of slices", state, link.reason if fast else f"{link.reason}: {_newer_nccl()}"))
    return lines


def network_links() -> list[Line]:
    """Whether workers can be put behind a link of a stated rate and delay, and who delays."""
    means = link_means()
    if isinstance(means, str):
        return [(False, "links", "not here", means)]
    way = "as root of a user namespace" if means.as_own_root else "as root"
    if means.kernel_delays or means.relay_delays:
        delay = "delays by the kernel's netem" if means.kernel_delays else "delays by a relay, the kernel has no netem"
        return [(True, "links", f"--link RATE[:DELAY], {way}; {delay}", "")]
    advice = f"delays need the kernel's netem (module sch_netem) or the right to open {TUN_DEVICE}"
    return [(True, "links", f"--link RATE, {way}; no delays", advice)]


def _newer_nccl() -> str:
    """How a framework is made to load another NCCL than its own."""
    package = nccl_package()
    return (
        f"pip install --no-deps --target NCCL_DIR {package}, and run with "
        f"LD_PRELOAD=NCCL_DIR/nvidia/nccl/lib/{LIBRARY} paceline run ..."
    )


def _frameworks(system: System) -> list[Line]:
    here = system.frameworks
    return [
        (True, name, here[name], "")
        if name in here
        else (False, name, "not installed", f"pip install 'paceline[{_EXTRA[name]}]'")
        for name in FRAMEWORKS
    ]


def _counters(system: System) -> list[Line]:
    sources = [*(["nvml for GPUs"] if system.gpus else []), *(["rapl for cores"] if rapl_counter() else [])]
    estimate = "" if rapl_counter() else f"of cores: estimated from CPU seconds at {watts_per_core():g} W per busy core"
    return [(bool(sources), "energy", ", ".join(sources) or "no counter is readable here", estimate)]


def _data() -> list[Line]:
    from paceline.data.mnist import find_folder

    folder = find_folder()
    advice = "" if folder else "put its four idx.gz files into a folder and name it with --data-dir or $PACELINE_DATA"
    return [
        (True, "mnist-5k", "ships with Paceline", ""),
        (folder is not None, "mnist", str(folder) if folder else "not on this machine", advice),
    ]


def examine(fleet: Fleet) -> None:
    """Prints what is known of each machine; raises `UserError` where one of them cannot be used."""
    with errors().status(f"reaching {fleet.about}") as status, ENGINES[fleet.engine](fleet) as (named, engine):
        machines = examine_fleet(named, engine, status.update)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("", *COLUMNS):
        table.add_column(column, no_wrap=column in ("machine", "address"))
    for machine in machines:
        table.add_row("[yellow]–[/]" if machine.problem else "[green]✓[/]", *map(escape, _row(machine)))
    output().print(table)
    bad = [machine for machine in machines if machine.problem]
    for machine in bad:
        output().print(f"[yellow]–[/] {escape(str(machine.problem))}")
    if bad:
        usable = [machine.name for machine in machines if not machine.problem]
        left = f"; usable as they are: {', '.join(usable)}" if usable else ""
        raise UserError(f"{format_count(len(bad), 'machine')} of {len(machines)} cannot be used{left}")


def _row(machine: ExaminedMachine) -> tuple[str, ...]:
    facts = machine.facts
    if facts is None:
        return machine.name, "not reached", *[""] * (len(COLUMNS) - 2)
    versions = [f"paceline {facts.paceline}", f"python {facts.python}"]
    versions += [f"{name} {version}" for name, version in sorted(facts.frameworks.items())]
    cores = machine.machine.cores if machine.machine is not None else facts.cores
    gpus = machine.machine.gpus if machine.machine is not None else range(len(facts.gpus))
    devices = [f"{format_count(len(cores), 'core')} of {facts.cpu}", *(facts.gpus[number].name for number in gpus)]
    devices.append(format_bytes(facts.memory_bytes))
    clock = machine.clock
    offset = f"{_signed(clock.offset / 1e9)} ± {format_seconds(clock.error / 1e9)}" if clock is not None else ""
    links = [f"{name}: {_link(link)}" for name, link in machine.links.items()]
    return (
        machine.name, f"{facts.address}\n{facts.interface}", "\n".join(versions), "\n".join(devices),
        "\n".join(sorted(facts.data)), offset, "\n".join(links),
    )  # fmt: skip


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _link(link: LinkMeasured) -> str:
    if link.bytes_per_second is None or link.round_trip_seconds is None:
        return f"none ({link.reason})"
    return f"{format_rate(link.bytes_per_second)}, {format_seconds(link.round_trip_seconds)} there and back"


def format_rate(bytes_per_second: float) -> str:
    """A rate as networks have it: `940 Mbit/s`."""
    bits = bytes_per_second * BITS
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"
