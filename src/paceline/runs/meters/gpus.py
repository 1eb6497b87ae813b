"""The GPUs of a run, by NVML: how busy and fast they were, what held their clocks back, who else used them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from paceline.record import Finding, GpuUse
from paceline.runs.meters.energy import READING_NANOSECONDS, gpu_handles
from paceline.spec import RunSpec

# NVML's reasons for lower clocks that a user should know of (nvml.h, nvmlClocksEventReasons); idling is not one.
REASONS = {
    0x004: "the power cap",
    0x008: "a hardware slow-down",
    0x020: "heat (software)",
    0x040: "heat (hardware)",
    0x080: "the power brake",
}
# Share of the readings of a busy GPU from which a reason is worth a finding.
NOTABLE_SHARE = 0.10
# A GPU that computed less than this in the time before a reading was not training then.
BUSY_PERCENT = 20
PERCENT = 100


@dataclass
class GpuMeter:
    """Readings of some GPUs during one run."""

    nvml: Any
    handles: Sequence[Any]
    clock: Callable[[], int]
    other_processes: list[int] = field(default_factory=list)
    readings: list[list[tuple[int, int, int]]] = field(default_factory=list)
    _last: int = 0

    def __post_init__(self) -> None:
        self.other_processes = [len(self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)) for handle in self.handles]

    def read(self, last: bool = False) -> None:
        """Utilisation, clock and reasons of each GPU, if the reading before is old enough."""
        now = self.clock()
        if not last and now - self._last < READING_NANOSECONDS:
            return
        self._last = now
        with suppress(self.nvml.NVMLError):
            self.readings.append([self._reading(handle) for handle in self.handles])

    def _reading(self, handle: Any) -> tuple[int, int, int]:
        return (
            int(self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            int(self.nvml.nvmlDeviceGetClockInfo(handle, self.nvml.NVML_CLOCK_SM)),
            int(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )

    def now(self) -> tuple[float | None, int | None]:
        """How busy the GPUs were at the last reading, on the mean, and the bytes in use on all of them."""
        share = fmean(reading[0] for reading in self.readings[-1]) / PERCENT if self.readings else None
        with suppress(self.nvml.NVMLError):
            return share, sum(int(self.nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in self.handles)
        return share, None

    def uses(self) -> tuple[GpuUse, ...]:
        """Each GPU's use as the record keeps it."""
        uses = []
        for number, handle in enumerate(self.handles):
            readings = [reading[number] for reading in self.readings]
            busy = [reading for reading in readings if reading[0] >= BUSY_PERCENT] or readings
            if not busy:
                continue
            shares = {
                name: sum(bool(reasons & bit) for _, _, reasons in busy) / len(busy) for bit, name in REASONS.items()
            }
            uses.append(
                GpuUse(
                    name=str(self.nvml.nvmlDeviceGetName(handle)),
                    utilisation=fmean(busy_percent for busy_percent, _, _ in readings) / PERCENT,
                    clock_mhz=median(clock for _, clock, _ in busy),
                    most_clock_mhz=float(self.nvml.nvmlDeviceGetMaxClockInfo(handle, self.nvml.NVML_CLOCK_SM)),
                    held_back={name: share for name, share in shares.items() if share},
                    other_processes=self.other_processes[number],
                )
            )
        return tuple(uses)


def gpu_findings(uses: Sequence[GpuUse], machine: str = "") -> list[Finding]:
    """Findings on GPUs of a machine that other processes used or whose clocks were held back."""
    findings, where = [], f" of {machine}" if machine else ""
    for number, use in enumerate(uses):
        if use.other_processes:
            text = f"{use.other_processes} other processes had GPU {number}{where} ({use.name}) in use before the run"
            hint = "end them, or read its times as those of a shared GPU"
            findings.append(Finding(code="gpu_shared", text=text, hint=hint))
        for name, share in use.held_back.items():
            if share >= NOTABLE_SHARE:
                text = f"{name} held the clock of GPU {number}{where} back in {share:.0%} of the readings: "
                text += f"{use.clock_mhz:.0f} of {use.most_clock_mhz:.0f} MHz"
                hint = "compare with runs at the same clock; cooling or a higher power limit would help"
                findings.append(Finding(code="gpu_throttled", text=text, hint=hint))
    return findings


def open_gpu_meter(spec: RunSpec, gpus: Sequence[int], clock: Callable[[], int]) -> GpuMeter | None:
    """A meter of these GPUs; None on CPU cores and where NVML does not answer."""
    if spec.device == "cpu":
        return None
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return GpuMeter(pynvml, gpu_handles(pynvml, gpus), clock)
    return None
