"""`paceline doctor`: what this machine can run, what is missing and how to get it."""

from rich.markup import escape
from rich.table import Table

from paceline.cli.doctor_fleet import examine
from paceline.cli.machines import On
from paceline.cli.terminal import output
from paceline.fleet import parse_fleet
from paceline.runs.meters.energy import rapl_counter, watts_per_core
from paceline.systems import System, local_system
from paceline.systems.links import TUN_DEVICE, link_means
from paceline.systems.local import FRAMEWORKS
from paceline.systems.nccl import LIBRARY, nccl_of, nccl_package, slice_link
from paceline.units import format_bytes

# Whether it is there, what it is, its state, and what to do about it.
Line = tuple[bool, str, str, str]
# Frameworks whose strategies train on slices, and what their links are called.
_ON_SLICES = ("torch", "jax")
_LINKS = {"p2p": "fast, through the GPU's memory", "socket": "slow, over loopback sockets"}
_EXTRA = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax"}


def doctor(on: On = None) -> None:
    """What this machine can run, or each of a fleet: frameworks, devices, counters, links; what is missing."""
    fleet = parse_fleet(on)
    if fleet.machines:
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
