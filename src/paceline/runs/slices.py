"""One GPU cut into slices, device `cuda-slice`: NVIDIA MPS gives each process its share of multiprocessors and memory.

Each run has a control daemon of its own, in a folder of its own, so that it disturbs no other user of MPS. How slices
talk is for the process to say that has the framework's NCCL loaded (`frameworks/slices.py`).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.contract.context import Process
from paceline.runs.folder import new_folder, orphaned_folders
from paceline.runs.processes import is_alive, stat_fields
from paceline.spec import RunSpec
from paceline.systems import System
from paceline.systems.local import SLICING

# In /tmp itself: the name of a socket in it must be shorter than 108 characters.
FOLDER_PREFIX = "paceline-mps-"
PERCENT = 100
MEBIBYTE = 1 << 20
# How long the daemon may take to end by itself after it was asked to; it waits for its clients to be gone.
QUIT_SECONDS = 5.0
_POLL_SECONDS = 0.05


def slice_environment(spec: RunSpec, process: Process, system: System) -> dict[str, str]:
    """The variables that give a process its share; one that drives several workers gets the shares of all of them."""
    if spec.device != "cuda-slice":
        return {}
    slices = spec.slices or spec.workers
    share = process.workers_each / slices
    return {
        # The daemon shows its clients the one GPU that it was given, as number 0.
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, int(PERCENT * share))),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={int(system.gpus[0].memory_bytes * share) // MEBIBYTE}M",
    }


@contextlib.contextmanager
def mps(spec: RunSpec) -> Iterator[dict[str, str]]:
    """A control daemon for one run, and the variables that lead its processes there; nothing on other devices."""
    if spec.device != "cuda-slice":
        yield {}
        return
    sweep()
    folder = new_folder(FOLDER_PREFIX)
    paths = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        _start(paths)
        yield paths
    finally:
        take_down(folder)


def _start(paths: dict[str, str]) -> None:
    env = {**os.environ, **paths, "CUDA_VISIBLE_DEVICES": first_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))}
    done = subprocess.run([SLICING, "-d"], env=env, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{SLICING} did not start (exit code {done.returncode}): {done.stderr.strip()}")


def first_gpu(visible: str | None) -> str:
    """The GPU that is cut into slices: the first that CUDA would see."""
    return next((word.strip() for word in (visible or "").split(",") if word.strip()), "0")


def take_down(folder: Path) -> None:
    """Ends the daemon of that folder and its server, by asking and then by force, and removes the folder."""
    daemon = _daemon(folder)
    if daemon is not None:
        # Asked for first: servers of a daemon that has gone are nobody's.
        children = _children(daemon)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [SLICING], env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder)}, input="quit\n", text=True,
                capture_output=True, timeout=QUIT_SECONDS, check=False,
            )  # fmt: skip
        until = time.monotonic() + QUIT_SECONDS
        while is_alive(daemon) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        for pid in (daemon, *children):
            if is_alive(pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Ends daemons that killed tools left running."""
    for folder in orphaned_folders(FOLDER_PREFIX):
        take_down(folder)


def _daemon(folder: Path) -> int | None:
    """The process id of the MPS daemon, read from its own file, if that process is still the daemon."""
    try:
        pid = int((folder / f"{SLICING}.pid").read_text())
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    # The kernel keeps the first 15 characters of a name.
    return pid if SLICING.startswith(name) else None


def _children(pid: int) -> list[int]:
    """Servers that the daemon has started."""
    running = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    # The parent stands behind the state.
    return [child for child in running if stat_fields(child)[1:2] == [str(pid)]]
