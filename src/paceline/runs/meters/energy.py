"""Joules of a run: counters of GPUs (`nvml`) or of the processor (`rapl`), else `estimated` from CPU seconds.

The launcher reads the counter now and then while it waits for the run's processes, which know nothing of it; what the
counter showed at the edges of an epoch lies between two readings.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import UserError
from paceline.record import Energy, Epoch
from paceline.spec import RunSpec

WATTS_VARIABLE = "PACELINE_WATTS_PER_CORE"
# Intel Xeon Platinum 8380 (Ice Lake): 270 W of thermal design power over 40 cores, by Intel's product page.
DEFAULT_WATTS_PER_CORE = 6.75
POWERCAP = Path("/sys/class/powercap")
# Power that is added up needs many readings: on an H200 that starts to work, ten in a second gave 7 % less than the
# GPU's own counter of energy over the same 6 seconds, fifty 1 %.
READING_NANOSECONDS = 20_000_000
IDLE_SECONDS = 1.0


class Counter(Protocol):
    """Joules that only ever rise."""

    source: str

    def joules(self) -> float:
        """Joules counted up to now, from an arbitrary starting point."""


@dataclass
class _Zone:
    """One counter of the processor; it starts again from zero past its range."""

    file: Path
    range_microjoules: int
    last: int
    overflows: int = 0

    def joules(self) -> float:
        now = int(self.file.read_text())
        self.overflows += now < self.last
        self.last = now
        return (now + self.overflows * self.range_microjoules) / 1e6


class RaplCounter:
    """All packages of the processor and the memory beside them, whoever uses them."""

    source = "rapl"

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = list(_zones(root))
        if not self._zones:
            raise OSError(f"no counter in {root}")

    def joules(self) -> float:
        """Joules of all zones together."""
        return sum(zone.joules() for zone in self._zones)


def _zones(root: Path) -> Iterator[_Zone]:
    """Packages and, apart from them, memory. Cores are within packages, and the platform's zone has them all again."""
    for folder in sorted(root.glob("intel-rapl:*")):
        name = (folder / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            file = folder / "energy_uj"
            yield _Zone(file, int((folder / "max_energy_range_uj").read_text()), int(file.read_text()))


class NvmlCounter:
    """The GPUs that a run uses: their counter of millijoules, or their power added up where they have none."""

    source = "nvml"

    def __init__(self, nvml: Any, handles: Sequence[Any], clock: Callable[[], float] = time.perf_counter) -> None:
        self._nvml, self._handles, self._clock = nvml, handles, clock
        self._integrated_joules, self._has_counter = 0.0, True
        try:
            self._counter_joules()
        except nvml.NVMLError:
            self._has_counter = False
            self._last = (clock(), self._watts())

    def joules(self) -> float:
        """Joules of all GPUs together."""
        try:
            return self._counter_joules() if self._has_counter else self._integrate_power()
        except self._nvml.NVMLError as error:
            raise OSError(str(error)) from error

    def _counter_joules(self) -> float:
        return float(sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)) / 1e3

    def _watts(self) -> float:
        return float(sum(self._nvml.nvmlDeviceGetPowerUsage(handle) for handle in self._handles)) / 1e3

    def _integrate_power(self) -> float:
        now, watts = self._clock(), self._watts()
        self._integrated_joules += (now - self._last[0]) * (watts + self._last[1]) / 2
        self._last = (now, watts)
        return self._integrated_joules


@dataclass
class EnergyMeter:
    """Readings of a counter during one run; without a counter, it only knows how to estimate."""

    energy: Energy
    counter: Counter | None = None
    readings: list[tuple[int, float]] = field(default_factory=list)

    def read(self, last: bool = False) -> None:
        """Takes a reading if the one before is old enough or this is the last chance."""
        now = time.perf_counter_ns()
        due = last or not self.readings or now - self.readings[-1][0] >= READING_NANOSECONDS
        if self.counter is not None and due:
            # A counter that fails leaves a gap, which later readings bridge; a run does not end for it.
            with suppress(OSError, ValueError):
                self.readings.append((now, self.counter.joules()))

    def joules_between(self, start: int, end: int) -> float | None:
        """Joules between two moments, interpolated between readings; None where readings do not cover them."""
        if len(self.readings) < 2 or start < self.readings[0][0] or end > self.readings[-1][0]:
            return None
        return self._at(end) - self._at(start)

    def _at(self, moment: int) -> float:
        place = max(1, bisect_left(self.readings, (moment, 0.0)))
        (before, low), (after, high) = self.readings[place - 1], self.readings[place]
        return low + (high - low) * (moment - before) / max(1, after - before)


class JoinedMeter(EnergyMeter):
    """Meters of several machines as one: joules of all of them, by the source that they share."""

    def __init__(self, meters: Sequence[EnergyMeter]) -> None:
        idle_watts = sum(meter.energy.idle_watts for meter in meters)
        super().__init__(meters[0].energy.model_copy(update={"idle_watts": idle_watts}))
        self.meters = meters

    def joules_between(self, start: int, end: int) -> float | None:
        """Joules of all machines; None where one of them has none."""
        joules = [meter.joules_between(start, end) for meter in self.meters]
        return None if None in joules else sum(value or 0.0 for value in joules)


def join_meters(meters: Sequence[EnergyMeter]) -> EnergyMeter | None:
    """One meter for all machines of a run; an estimate where they have unlike sources."""
    if len({meter.energy.source for meter in meters}) > 1:
        return EnergyMeter(estimate())
    return meters[0] if len(meters) == 1 else JoinedMeter(meters) if meters else None


def open_energy_meter(spec: RunSpec, gpus: Sequence[int]) -> EnergyMeter | None:
    """The best source for what the run computes on: GPUs have nvml or nothing, cores have rapl or an estimate."""
    if spec.device != "cpu":
        counter = _gpu_counter(tuple(gpus))
        idle_watts = _idle_watts("nvml", tuple(gpus)) if counter else 0.0
        return EnergyMeter(Energy(source="nvml", idle_watts=idle_watts), counter) if counter else None
    rapl = rapl_counter()
    if rapl is not None:
        return EnergyMeter(Energy(source="rapl", idle_watts=_idle_watts("rapl", ())), rapl)
    return EnergyMeter(estimate())


def estimate() -> Energy:
    """An energy source that multiplies CPU seconds by what a busy core draws, as the user says or by default."""
    return Energy(source="estimated", watts_per_core=watts_per_core())


def watts_per_core() -> float:
    """Watts of a busy core, from the environment variable that `paceline run --watts-per-core` sets."""
    text = os.environ.get(WATTS_VARIABLE)
    if not text:
        return DEFAULT_WATTS_PER_CORE
    with suppress(ValueError):
        if 0 < (watts := float(text)) < float("inf"):
            return watts
    raise UserError(f"{WATTS_VARIABLE} {text!r} is no power; give the watts of one busy core, such as 7.5")


def charge(
    epochs: Sequence[Epoch], edges: Sequence[tuple[int, int]], serving_cpu_seconds: float, meter: EnergyMeter | None
) -> tuple[tuple[Epoch, ...], Energy | None]:
    """The epochs with their joules. `edges` are each epoch's first start and last end on the clock of its processes.

    Processes that serve know no epochs; an estimate shares out their CPU seconds by the length of each.
    """
    if meter is None or not epochs:
        return tuple(epochs), None
    counted = [meter.joules_between(*edge) for edge in edges]
    if None not in counted:
        return _with_joules(epochs, counted), meter.energy
    if meter.energy.source == "nvml":
        return tuple(epochs), None
    energy = meter.energy if meter.energy.watts_per_core is not None else estimate()
    whole = sum(epoch.seconds for epoch in epochs) or 1.0
    cpu = [epoch.cpu_seconds + serving_cpu_seconds * epoch.seconds / whole for epoch in epochs]
    watts = energy.watts_per_core or 0.0
    return _with_joules(epochs, [seconds * watts for seconds in cpu]), energy


def _with_joules(epochs: Sequence[Epoch], joules: Sequence[float | None]) -> tuple[Epoch, ...]:
    return tuple(epoch.model_copy(update={"joules": value}) for epoch, value in zip(epochs, joules, strict=True))


def rapl_counter() -> RaplCounter | None:
    """The processor's counters, if this process may read them."""
    # Since 2020 kernels let only root read it (CVE-2020-8694); virtual machines mostly have none.
    with suppress(OSError, ValueError):
        return RaplCounter()
    return None


def gpu_handles(nvml: Any, gpus: Sequence[int]) -> list[Any]:
    """The GPUs that a run will use, of those that CUDA will see; workers beyond the last share it."""
    handles = _handles(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return [handles[number] for number in gpus if number < len(handles)]


def _gpu_counter(gpus: tuple[int, ...]) -> NvmlCounter | None:
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return NvmlCounter(pynvml, gpu_handles(pynvml, gpus))
    return None


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    """The GPUs that CUDA will see, in its order."""
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    words = [word.strip() for word in visible.split(",") if word.strip()]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(word)) if word.isdigit() else nvml.nvmlDeviceGetHandleByUUID(word)
        for word in words
    ]


@cache
def _idle_watts(source: str, gpus: tuple[int, ...]) -> float:
    """The power of the idle machine by the counter, measured once, before the first run that needs it."""
    counter = _gpu_counter(gpus) if source == "nvml" else rapl_counter()
    return mean_watts(counter, time.sleep) if counter is not None else 0.0


def mean_watts(counter: Counter, pause: Callable[[float], None]) -> float:
    """The mean power that the counter shows over `IDLE_SECONDS`."""
    begin, start = counter.joules(), time.perf_counter()
    pause(IDLE_SECONDS)
    return max(0.0, (counter.joules() - begin) / max(time.perf_counter() - start, 1e-9))
