"""What can be seen of a run from outside while it goes on: the cores and memory it uses, and what it prints."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.runs.meters.gpus import GpuMeter
from paceline.runs.processes import cpu_seconds
from paceline.runs.wire import LogEvent, UseEvent

# Often enough for a curve that moves; each look reads two small files for each process.
LOOK_SECONDS = 1.0
# Of what was printed between two looks: bytes of each process, and processes.
LOG_BYTES, MOST_LOGS = 2_000, 4


@dataclass
class Watch:
    """Looks at the processes of a run on this machine, once in a while."""

    pids: Callable[[], Sequence[int]]
    # Where each rank prints to.
    logs: dict[int, Path]
    gpus: GpuMeter | None = None
    clock: Callable[[], float] = time.monotonic
    _last: float | None = None
    # CPU seconds so far by process, and how much of each log was read.
    _used: dict[int, float] = field(default_factory=dict)
    _read: dict[int, int] = field(default_factory=dict)

    def look(self) -> list[UseEvent | LogEvent]:
        """What is new, if the look before is old enough; the first one only notes where things stand."""
        now = self.clock()
        if self._last is not None and now - self._last < LOOK_SECONDS:
            return []
        seconds, self._last = now - (self._last if self._last is not None else now), now
        family = [pid for leader in self.pids() for pid in descendants(leader)]
        before, self._used = self._used, {pid: cpu_seconds(pid) for pid in family}
        if seconds <= 0:
            return []
        busy = sum(max(0.0, used - before.get(pid, used)) for pid, used in self._used.items())
        share, held = self.gpus.now() if self.gpus is not None else (None, None)
        use = UseEvent(
            cpu_cores=busy / seconds,
            memory_bytes=sum(map(private_bytes, family)),
            gpu_share=share,
            gpu_memory_bytes=held,
        )
        return [use, *self._printed()]

    def _printed(self) -> list[LogEvent]:
        events: list[LogEvent] = []
        for rank, path in self.logs.items():
            if len(events) == MOST_LOGS:
                break
            start = self._read.get(rank, 0)
            try:
                size = path.stat().st_size
                if size <= start:
                    continue
                with path.open("rb") as log:
                    log.seek(max(start, size - LOG_BYTES))
                    text = log.read(LOG_BYTES).decode(errors="replace")
            except OSError:
                continue
            self._read[rank] = size
            events.append(LogEvent(rank=rank, text=text))
        return events


def descendants(pid: int) -> list[int]:
    """A process and those that it started, such as loaders; only itself where the kernel keeps no such list."""
    family = [pid]
    for member in family:
        try:
            family += map(int, Path(f"/proc/{member}/task/{member}/children").read_text().split())
        except OSError:
            continue
    return family


def private_bytes(pid: int) -> int:
    """Resident bytes of a process without pages of files and shared memory; 0 if it is gone."""
    try:
        _, resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
