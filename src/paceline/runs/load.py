"""Whether anything else kept the machine busy during a run, from the kernel's own accounts."""

import os
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

from paceline.record import Finding

# Share of all cores that others may use before a run's times deserve a warning.
DISTURBING_SHARE = 0.10
WORTH_TELLING = 0.005
# The columns of /proc/stat's first line (proc(5)).
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7


@dataclass(frozen=True)
class _Reading:
    at: float
    busy_seconds: float
    stolen_seconds: float
    own_seconds: float


def _read() -> _Reading | None:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    tick = 1 / os.sysconf("SC_CLK_TCK")
    values = [int(field_text) * tick for field_text in fields]
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    busy = sum(values[column] for column in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    return _Reading(time.monotonic(), busy, values[_STEAL], own)


@dataclass
class LoadMeter:
    """Compares what the machine did with what this run did."""

    _start: _Reading | None = field(default_factory=_read)

    def finding(self, unaccounted_seconds: float) -> Finding | None:
        """The warning, once the run's processes have ended.

        `unaccounted_seconds` is CPU time of the run that the kernel does not count as this process's children.
        """
        end = _read()
        if self._start is None or end is None:
            return None
        core_seconds = (end.at - self._start.at) * (os.cpu_count() or 1)
        own = end.own_seconds - self._start.own_seconds + unaccounted_seconds
        others = max(0.0, end.busy_seconds - self._start.busy_seconds - own)
        stolen = max(0.0, end.stolen_seconds - self._start.stolen_seconds)
        if core_seconds <= 0 or (others + stolen) / core_seconds < DISTURBING_SHARE:
            return None
        shares = {"other programs": others / core_seconds, "other guests of its host": stolen / core_seconds}
        told = [f"{who} used {share:.0%} of the machine" for who, share in shares.items() if share >= WORTH_TELLING]
        return Finding(
            code="other_load",
            text=" and ".join(told) + " during the run",
            hint="close other programs, or compare CPU time per step instead of wall clock",
        )
