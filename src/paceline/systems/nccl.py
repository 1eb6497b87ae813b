"""The NCCL that a process has loaded, and how slices of one GPU talk through it.

NCCL takes several ranks on one GPU from 2.30 on; their data then stays in the GPU's memory. Older versions refuse one
GPU twice, but take ranks that each claim another host, which talk over loopback sockets.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from paceline.spec import Frozen, Transport

Version = tuple[int, int, int]
LIBRARY = "libnccl.so.2"
# The first that knows NCCL_MULTI_RANK_GPU_ENABLE.
FIRST_MULTI_RANK: Version = (2, 30, 0)
# Until 2.8 NCCL counted 1,000 for a major version and from then on 10,000: 2.8.4 is 2804, and 2.30.1 is 23001.
_OLD_STYLE_BELOW = 10_000
# Where no package of it is installed that says for which CUDA it is.
_USUAL_PACKAGE = "nvidia-nccl-cu13"
# An import of a framework on a slow disk; only a hang takes longer.
_IMPORT_SECONDS = 120.0
_LOOK = """
import {framework}
from paceline.systems.nccl import FoundNccl, loaded_nccl
print(FoundNccl(version=loaded_nccl()).model_dump_json())
"""
# NCCL's kernels have a block for each channel, and those of all slices wait for each other: where one finds no free
# multiprocessor on its slice, all wait for ever. With NCCL's own choice eight slices of an H200 hung; with 8 channels
# on each of four slices, a quarter of their multiprocessors, 2 of 17 runs of GPT-2 did, and none of 5 with 4. On an
# H200 8, 4 and 2 channels moved 155, 95 and 46 GB/s between 2, 4 and 8 slices, and twice as many 253, 159 and 86.
CHANNEL_SHARE = 8
# Of CUDA's driver: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, of a process under MPS that of its share.
_DRIVER, _MULTIPROCESSOR_COUNT = "libcuda.so.1", 16
# The variables that bound channels. A user's own values stay: fewer channels are a slower link, on purpose.
BOUNDS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
# Where the record of a run says which NCCL a rank had, how it talked to other slices, why so, and how fast.
NCCL_VERSION, SLICE_TRANSPORT, SLICE_TRANSPORT_REASON = "nccl_version", "slice_transport", "slice_transport_reason"
LINK_SPEED = "link_bytes_per_second"


class FoundNccl(Frozen):
    """The NCCL of a process, as the process prints it."""

    version: Version | None


@dataclass(frozen=True)
class SliceLink:
    """How slices of one GPU talk: through its memory (NCCL's p2p) or over loopback sockets, and why."""

    transport: Literal["p2p", "socket"]
    reason: str

    def environment(self, rank: int, multiprocessors: int, interface: str = "lo") -> dict[str, str]:
        """NCCL's environment variables for a process on so many multiprocessors; read when ranks meet."""
        sockets = {"NCCL_SOCKET_IFNAME": interface, "NCCL_IB_DISABLE": "1"}
        if self.transport == "socket":
            return {**sockets, "NCCL_HOSTID": f"slice-{rank}"}
        return {**sockets, "NCCL_MULTI_RANK_GPU_ENABLE": "1", **dict.fromkeys(BOUNDS, str(channels(multiprocessors)))}


def channels(multiprocessors: int) -> int:
    """How many channels NCCL may use on a slice, so that its kernels can run on all slices at the same time."""
    return max(1, round(multiprocessors / CHANNEL_SHARE))


def slice_multiprocessors() -> int:
    """Multiprocessors of this process's slice; 0 where the driver does not say."""
    device, count = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL(_DRIVER)
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDeviceGetAttribute(ctypes.byref(count), _MULTIPROCESSOR_COUNT, device)
        )
    except (OSError, AttributeError):
        return 0
    return 0 if failed else count.value


def slice_link(nccl: Version | None, transport: Transport) -> SliceLink:
    """The fastest link that this NCCL offers, or the slow one where it was asked for."""
    if transport == "socket":
        return SliceLink("socket", "transport socket was asked for")
    if nccl is None:
        return SliceLink("socket", "no NCCL was found")
    if nccl < FIRST_MULTI_RANK:
        first = version_text(FIRST_MULTI_RANK[:2])
        return SliceLink("socket", f"NCCL {version_text(nccl)} takes one rank on a GPU, and {first} or newer several")
    return SliceLink("p2p", f"NCCL {version_text(nccl)} takes several ranks on one GPU")


def version_text(version: tuple[int, ...]) -> str:
    """`2.30.1`."""
    return ".".join(map(str, version))


def parse_version(number: int) -> Version:
    """The version from the number that NCCL reports."""
    thousand = 1_000 if number < _OLD_STYLE_BELOW else 10_000
    return number // thousand, number % thousand // 100, number % 100


def loaded_nccl() -> Version | None:
    """The NCCL that calls from this process reach.

    That is one put before all others (`LD_PRELOAD`), else the one that the framework has loaded, else the one that it
    will load. What a framework says of it is only the version it was compiled with.
    """
    places = [(None, os.RTLD_LAZY), (LIBRARY, os.RTLD_LAZY | os.RTLD_NOLOAD)]
    places += [(str(path), os.RTLD_LAZY) for path in (*_packaged(), Path(LIBRARY))]
    for name, mode in places:
        number = ctypes.c_int()
        try:
            failed = ctypes.CDLL(name, mode=mode).ncclGetVersion(ctypes.byref(number))
        except (OSError, AttributeError):
            continue
        if not failed:
            return parse_version(number.value)
    return None


def _packaged() -> list[Path]:
    """The library of NVIDIA's own package, where frameworks look for it."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return []
    folders = (package.submodule_search_locations or ()) if package else ()
    return [path for folder in folders if (path := Path(folder) / "lib" / LIBRARY).is_file()]


def nccl_package() -> str:
    """The name of NVIDIA's package for the CUDA that is installed here."""
    installed = metadata.distributions()
    names = [str(package.metadata["Name"]) for package in installed if package.metadata["Name"]]
    return next((name for name in names if name.startswith("nvidia-nccl-cu")), _USUAL_PACKAGE)


def nccl_of(framework: str) -> Version | None:
    """The NCCL that processes with that framework load, found by importing the framework in a process."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _LOOK.format(framework=framework)],
            capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    # A framework may print, too.
    lines = done.stdout.splitlines()
    return FoundNccl.model_validate_json(lines[-1]).version if done.returncode == 0 and lines else None
