"""All meters of one machine during one run: energy, GPUs, and what the machine did beside the run."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.contract.context import Process
from paceline.runs.meters.energy import EnergyMeter, open_energy_meter
from paceline.runs.meters.environment import environment
from paceline.runs.meters.gpus import GpuMeter, open_gpu_meter
from paceline.runs.meters.load import Reading, read_load
from paceline.runs.wire import MachineReport
from paceline.spec import RunSpec

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class MachineMeters:
    """The meters of the machine that this process is on."""

    energy: EnergyMeter | None = None
    gpus: GpuMeter | None = None
    # CPU seconds so far of processes of the run that the kernel does not count as this one's children.
    elsewhere: Callable[[], float] = float
    before: Reading | None = None

    def start(self) -> None:
        """The run begins."""
        self.before = read_load(self.elsewhere)

    def read(self, last: bool = False) -> None:
        """Takes a reading of each meter whose last one is old enough, or of all at the last chance."""
        for meter in (self.energy, self.gpus):
            if meter is not None:
                meter.read(last)

    def report(self) -> MachineReport:
        """What all of them read; to be called when the processes of the run are gone."""
        after = read_load(self.elsewhere)
        return MachineReport(
            boot_id=boot_id(),
            environment=environment(),
            load=(self.before, after) if self.before is not None and after is not None else None,
            energy=self.energy.energy if self.energy else None,
            energy_readings=self.energy.readings if self.energy else [],
            gpus=self.gpus.uses() if self.gpus is not None else (),
        )


def open_machine_meters(
    spec: RunSpec, processes: Sequence[Process], elsewhere: Callable[[], float] = float
) -> MachineMeters:
    """The meters of this machine, on which these processes of the run will be."""
    devices = gpu_numbers(spec, processes)
    return MachineMeters(
        open_energy_meter(spec, devices), open_gpu_meter(spec, devices, time.perf_counter_ns), elsewhere
    )


def gpu_numbers(spec: RunSpec, processes: Sequence[Process]) -> list[int]:
    """The GPUs of this machine that the run uses, by number; all slices are of the same GPU."""
    if spec.device == "cpu":
        return []
    if spec.device == "cuda-slice":
        return [0]
    workers = [process for process in processes if process.role == "worker"]
    return sorted({process.device + number for process in workers for number in range(process.workers_each)})


def boot_id() -> str:
    """What tells one running kernel from another; the process's own number where the kernel does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"unknown {os.getpid()}"
