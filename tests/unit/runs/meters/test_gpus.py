"""A stand-in for NVML, whose GPUs are not on this machine."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.runs.meters.energy import READING_NANOSECONDS
from paceline.runs.meters.gpus import GpuMeter, gpu_findings


class Nvml:
    NVML_CLOCK_SM = 1
    NVMLError = ValueError

    def __init__(self, readings: list[tuple[int, int, int]], processes: int = 0) -> None:
        self.readings, self.processes, self.at = readings, processes, 0

    def _now(self) -> tuple[int, int, int]:
        return self.readings[min(self.at, len(self.readings) - 1)]

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: Any) -> list[int]:
        return [1] * self.processes

    def nvmlDeviceGetUtilizationRates(self, _handle: Any) -> Any:
        return SimpleNamespace(gpu=self._now()[0])

    def nvmlDeviceGetClockInfo(self, _handle: Any, _which: int) -> int:
        return self._now()[1]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: Any) -> int:
        reasons = self._now()[2]
        self.at += 1
        if reasons < 0:
            raise ValueError("gone")
        return reasons

    def nvmlDeviceGetMaxClockInfo(self, _handle: Any, _which: int) -> int:
        return 1980

    def nvmlDeviceGetName(self, _handle: Any) -> str:
        return "a card"


def watched(readings: list[tuple[int, int, int]], processes: int = 0) -> GpuMeter:
    nvml, ticks = Nvml(readings, processes), count(READING_NANOSECONDS, READING_NANOSECONDS)
    watch = GpuMeter(nvml, ["gpu"], lambda: next(ticks))
    for _ in readings:
        watch.read()
    return watch


def test_the_clock_is_that_of_a_busy_gpu() -> None:
    (use,) = watched([(0, 500, 1), (90, 1900, 0), (100, 1700, 0), (95, 1800, 0)]).uses()
    assert use.clock_mhz == 1800
    assert use.most_clock_mhz == 1980
    assert use.utilisation == pytest.approx((0 + 0.9 + 1.0 + 0.95) / 4)


def test_idling_is_no_reason_to_warn() -> None:
    assert gpu_findings(watched([(90, 1900, 1)] * 4).uses()) == []


def test_a_power_cap_in_many_readings_is_a_finding() -> None:
    (finding,) = gpu_findings(watched([(90, 1500, 4), (90, 1500, 0)] * 4).uses())
    assert finding.code == "gpu_throttled"
    assert "the power cap held the clock of GPU 0 back in 50% of the readings: 1500 of 1980 MHz" in finding.text


def test_one_reading_in_twenty_is_not() -> None:
    assert gpu_findings(watched([(90, 1900, 0x40)] + [(90, 1900, 0)] * 19).uses()) == []


def test_processes_of_others_are_a_finding() -> None:
    (finding,) = gpu_findings(watched([(90, 1900, 0)], processes=2).uses())
    assert finding.code == "gpu_shared"
    assert finding.text.startswith("2 other processes had GPU 0 (a card) in use")


def test_a_reading_that_fails_leaves_a_gap() -> None:
    watch = watched([(90, 1900, 0), (90, 1900, -1), (90, 1900, 0)])
    assert len(watch.readings) == 2


def test_readings_keep_their_distance() -> None:
    ticks = iter([READING_NANOSECONDS, READING_NANOSECONDS + 1, 2 * READING_NANOSECONDS, 0])
    watch = GpuMeter(Nvml([(90, 1900, 0)] * 4), ["gpu"], lambda: next(ticks))
    for _ in range(3):
        watch.read()
    assert len(watch.readings) == 2
    watch.read(last=True)
    assert len(watch.readings) == 3


def test_a_gpu_that_was_never_read_tells_nothing() -> None:
    assert watched([]).uses() == ()
