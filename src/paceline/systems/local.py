"""What this machine has, found without importing any framework."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

from paceline.link import NetworkLink
from paceline.systems.links import why_no_link

# The package that is imported, and the distributions that may provide it.
FRAMEWORKS = {"torch": ("torch",), "tensorflow": ("tensorflow", "tensorflow-cpu"), "keras": ("keras",), "jax": ("jax",)}
# The program that cuts a GPU into slices.
SLICING = "nvidia-cuda-mps-control"


@dataclass(frozen=True)
class Gpu:
    """One CUDA device."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class System:
    """The hardware and the frameworks that runs can use."""

    cpu: str
    cores: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    # Why no GPU can be cut into slices, or None.
    no_slices: str | None = None
    frameworks: dict[str, str] = field(default_factory=dict)
    # Why processes cannot be put behind a link, or None.
    no_link: Callable[[NetworkLink], str | None] = lambda _link: None


@cache
def local_system() -> System:
    """The machine at hand. Cores are those this process may use, not all that exist."""
    gpus = _gpus()
    return System(
        cpu=_cpu_name(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=gpus,
        no_slices=_missing_for_slices(gpus),
        no_link=why_no_link,
        frameworks={name: version for name in FRAMEWORKS if (version := framework_version(name))},
    )


def framework_version(name: str) -> str | None:
    """The installed version, or None."""
    if importlib.util.find_spec(name) is None:
        return None
    for distribution in FRAMEWORKS.get(name, (name,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> tuple[Gpu, ...]:
    if not Path("/dev/nvidiactl").exists():
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    gpus = tuple(Gpu(pynvml.nvmlDeviceGetName(h), int(pynvml.nvmlDeviceGetMemoryInfo(h).total)) for h in handles)
    pynvml.nvmlShutdown()
    return gpus


def _missing_for_slices(gpus: tuple[Gpu, ...]) -> str | None:
    """What device cuda-slice lacks here, in words, found without touching a GPU; None if nothing."""
    if not gpus:
        return "this machine has no CUDA device"
    if shutil.which(SLICING) is None:
        return f"{SLICING} is not on the path; it comes with NVIDIA's driver (package nvidia-compute-utils or the like)"
    return None
