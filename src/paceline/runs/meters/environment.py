"""The surroundings of a run, whole: what must match before two runs may be compared."""

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.systems import local_system


@cache
def environment() -> dict[str, Any]:
    """Versions, processors, memory and the state of the source; looked up once per process."""
    system = local_system()
    return {
        "paceline": _version("paceline"),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "frameworks": dict(sorted(system.frameworks.items())),
        "cpu": system.cpu,
        "cores": list(system.cores),
        "memory_bytes": system.memory_bytes,
        "gpus": [gpu.name for gpu in system.gpus],
        "kernel": platform.release(),
        "libc": "-".join(platform.libc_ver()),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "host": platform.node(),
        "git_commit": _git_commit(),
    }


# Fields that change from run to run or place to place without making times unlike.
NOT_COMPARED = frozenset({"git_commit", "host", "paceline", "machine_hosts"})


def unlike_fields(environments: list[dict[str, Any]]) -> list[str]:
    """Names of fields in which the environments differ."""
    names = sorted({name for env in environments for name in env} - NOT_COMPARED)
    return [name for name in names if any(env.get(name) != environments[0].get(name) for env in environments[1:])]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _git_commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
