"""Whether anything else kept the machine busy during a run, from the kernel's own accounts."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.record import Finding

# Share of all cores that others may use, and of its time that a process may stand without a core that others use a
# little of, before a run's times deserve a warning.
DISTURBING_SHARE = 0.10
NOTICEABLE_SHARE = 0.02
LEAST_SHARE = 0.005
# The columns of /proc/stat's first line (proc(5)).
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7


@dataclass(frozen=True)
class Reading:
    """The kernel's accounts at one moment: of the whole machine, and of this process and those it started."""

    at: float
    busy_seconds: float
    stolen_seconds: float
    run_seconds: float
    cores: int


def read_load(elsewhere: Callable[[], float] = float) -> Reading | None:
    """The accounts as they are now; None where the kernel keeps none."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    tick = 1 / os.sysconf("SC_CLK_TCK")
    values = [int(field_text) * tick for field_text in fields]
    run_seconds = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    busy = sum(values[column] for column in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    return Reading(time.monotonic(), busy, values[_STEAL], run_seconds + elsewhere(), os.cpu_count() or 1)


def with_run_seconds(reading: Reading, others: Sequence[Reading]) -> Reading:
    """The reading of a host with the CPU seconds of several agents, which all are the run's."""
    return replace(reading, run_seconds=reading.run_seconds + sum(other.run_seconds for other in others))


def other_load_finding(
    start: Reading | None, end: Reading | None, queued: float = 0.0, machine: str = ""
) -> Finding | None:
    """A warning if others used much of the machine between two readings.

    `queued` is the longest share of its time that a process of the run stood without a core.
    """
    if start is None or end is None:
        return None
    core_seconds = (end.at - start.at) * end.cores
    others = max(0.0, end.busy_seconds - start.busy_seconds - (end.run_seconds - start.run_seconds))
    stolen = max(0.0, end.stolen_seconds - start.stolen_seconds)
    if core_seconds <= 0:
        return None
    used = (others + stolen) / core_seconds
    if used < DISTURBING_SHARE and not (used >= NOTICEABLE_SHARE and queued >= DISTURBING_SHARE):
        return None
    shares = {"other programs": others / core_seconds, "other guests of its host": stolen / core_seconds}
    uses = [
        f"{who} used {share:.0%} of {machine or 'the machine'}" for who, share in shares.items() if share >= LEAST_SHARE
    ]
    core_wait = f"; one of its processes waited for a core for {queued:.0%} of it"
    waited = core_wait if queued >= LEAST_SHARE else ""
    return Finding(
        code="other_load",
        text=" and ".join(uses) + " during the run" + waited,
        hint="close other programs, or compare CPU time per step instead of wall clock",
    )
