"""How long a process stood ready to run and had no core, by the kernel's scheduler."""

from contextlib import suppress
from pathlib import Path

NANOSECONDS = 1e9


def run_queue_seconds() -> float:
    """The wait so far of the thread of this process that waited longest; 0 where the kernel keeps no such accounts."""
    longest = 0
    # Time on a core, time ready without one, turns (Documentation/scheduler/sched-stats.rst).
    for account in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            longest = max(longest, int(account.read_text().split()[1]))
    return longest / NANOSECONDS
