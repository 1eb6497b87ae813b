"""Measures the GPUs of this machine, or slices of the first one ─► a system in numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from paceline.calibrate.gpu.fit import (
    calls_of,
    curves_of,
    efficiencies,
    grid_of,
    host_seconds,
    link_of,
    nearest_description,
)
from paceline.calibrate.gpu.gauge import GpuGauge, Say, gpu_gauging
from paceline.calibrate.gpu.messages import GpuAnswer, Part, Where
from paceline.calibrate.gpu.replay import NO_REPLAY, Replay
from paceline.calibrate.journal import Journal
from paceline.calibrate.phases import Phases
from paceline.errors import UserError
from paceline.systems.hardware import LOCAL, Calibration, Collective, Hardware, Quantity
from paceline.systems.local import System

# Seconds that each part may take where there is time enough; less of each where there is not.
PARTS: dict[Part, float] = {
    "products": 15.0, "convolutions": 12.0, "attention": 14.0, "memory": 4.0, "updates": 2.0, "host": 16.0,
    "power": 2.5,
}  # fmt: skip
REPLAY_SECONDS = 15.0
LINK_SECONDS = 7.0
# Of each number of ranks: what computing at the same time costs them.
CROWDING_SECONDS = 6.0
# Until a process has CUDA, or NCCL has joined several.
START_SECONDS = 4.0
USUAL_SECONDS, QUICK_SECONDS = 90.0, 40.0
RANKS = (2, 4, 8)
USUAL_SLICES = 4


@dataclass
class GpuCalibrator:
    """Takes the measurements in order; those that fail are reported and left out."""

    system: System
    device: Where
    say: Say
    slices: int = USUAL_SLICES
    # The operations of a model that is given, timed as they are.
    replay: Replay = NO_REPLAY
    parts: dict[Part, float] = field(default_factory=lambda: dict(PARTS))
    # All of it should take no longer than this, replaying aside.
    seconds: float = USUAL_SECONDS
    most_flops: float = float("inf")
    failures: dict[str, str] = field(default_factory=dict)
    # Where it goes on after an interruption.
    journal: Journal = field(default_factory=Journal)

    def calibrate(self) -> Hardware:
        """A minute or a little more."""
        link_seconds = START_SECONDS + CROWDING_SECONDS + LINK_SECONDS * self._haste
        first = (
            START_SECONDS + sum(self.parts.values()) * self._haste + (REPLAY_SECONDS if self.replay.operations else 0)
        )
        phases = Phases(self.say, [first, *(link_seconds for _ in self._ranks)])
        with gpu_gauging(self.device, self.system, self.slices, phases.note, self.most_flops) as gauge:
            parts = {part: seconds * self._haste for part, seconds in self.parts.items()}
            if self.replay.operations:
                parts["replay"] = REPLAY_SECONDS
            phases.begin("timing operations")
            answer = self._measured("operations", lambda: gauge.measure(parts, replay=self.replay))
            if not answer.operations and not answer.replayed:
                reason = next(iter(answer.failures.values()), "nothing was timed")
                raise UserError(f"calibrating with device {self.device} failed: {reason}; run paceline doctor")
            links, together = self._with_links(gauge, phases)
        return self._hardware(answer, links, together)

    @property
    def _ranks(self) -> list[int]:
        devices = self.slices if self.device == "cuda-slice" else len(self.system.gpus)
        return [count for count in RANKS if count <= devices]

    @property
    def _haste(self) -> float:
        """The factor by which the time limits of all parts are scaled."""
        starting = START_SECONDS + (START_SECONDS + CROWDING_SECONDS) * len(self._ranks)
        full_seconds = sum(self.parts.values()) + LINK_SECONDS * len(self._ranks)
        return min(1.0, max(0.1, (self.seconds - starting) / full_seconds))

    def _measured(self, name: str, measure: Callable[[], GpuAnswer]) -> GpuAnswer:
        text = self.journal.measured(name, lambda: measure().model_dump_json())
        answer = GpuAnswer.model_validate_json(text)
        self.failures |= answer.failures
        for part, count in answer.left_out.items():
            self.failures[part] = f"no time for {count} of its cases"
        return answer

    def _with_links(self, gauge: GpuGauge, phases: Phases) -> tuple[list[Collective], dict[int, GpuAnswer]]:
        """Curves of transfers between as many ranks as there are devices, and the answers by number of ranks."""
        curves: list[Collective] = []
        together: dict[int, GpuAnswer] = {}
        for ranks in self._ranks:
            phases.begin(f"timing transfers between {ranks} ranks")
            seconds: dict[Part, float] = {"links": LINK_SECONDS * self._haste}
            answer = self._measured(f"links of {ranks}", partial(gauge.measure, seconds, world=ranks))
            curves += curves_of(answer.transfers, ranks)
            if answer.transfers:
                together[ranks] = answer
        return curves, together

    def _hardware(self, answer: GpuAnswer, links: list[Collective], together: dict[int, GpuAnswer]) -> Hardware:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        described, share = nearest_description(answer.gpu), 1 / self.slices if self.device == "cuda-slice" else 1.0
        source = f"measured by paceline calibrate, {at}"
        calibration = Calibration(
            at=at, machine=self.system.cpu, frameworks={"torch": answer.torch}, gpu=answer.gpu,
            operations=grid_of(answer.operations), replayed=grid_of(answer.replayed), collectives=tuple(links),
            replayed_calls=calls_of(answer.replayed), replayed_batches=self.replay.batches,
            replayed_hosts={digest: _by_precision(answer) for digest in self.replay.batches},
            operation_crowding={str(ranks): measured.crowding for ranks, measured in together.items() if share < 1},
        )  # fmt: skip
        device = described.device.model_copy(update={
            "name": answer.gpu if share == 1 else f"1/{self.slices} of {answer.gpu}",
            "memory_bytes": Quantity(value=answer.memory_bytes * share, source=source),
            **_scaled(described, share),
        })  # fmt: skip
        device = device.model_copy(update=efficiencies(answer.operations, device, source))
        device = device.model_copy(update=host_seconds(answer.host, device, source))
        watts = {"idle_watts": answer.idle_watts, "busy_watts": answer.busy_watts}
        device = device.model_copy(
            update={
                name: Quantity(value=value * share, source=f"{source}, by NVML")
                for name, value in watts.items()
                if value
            }
        )
        fields: dict[str, Any] = {"device": device, "calibration": calibration, "name": LOCAL}
        count = self.slices if share < 1 else len(self.system.gpus)
        fields |= {"node_devices": max(1, count), "about": f"{answer.gpu}, {_count(count, share < 1)}"}
        if share < 1:
            fields["slices"] = self.slices
        if links:
            fields["inner"] = link_of(links, source)
        overlapped = together[max(together)] if together else GpuAnswer()
        for name in ("interference", "overlap_slowdown"):
            if (value := getattr(overlapped, name)) is not None:
                fields[name] = Quantity(value=value, source=source)
        return described.model_copy(update=fields)


def _by_precision(answer: GpuAnswer) -> dict[str, float]:
    return {timing.precision: timing.seconds for timing in answer.model_host}


def _count(count: int, slices: bool) -> str:
    return f"{count} slices of it" if slices else f"{count} in this machine"


def _scaled(described: Hardware, share: float) -> dict[str, Any]:
    """The described device scaled to a slice's multiprocessors; memory bandwidth is that of the whole GPU."""
    rates = {
        precision: peak.model_copy(update={"value": peak.value * share})
        for precision, peak in described.device.flops_per_second.items()
    }
    return {"flops_per_second": rates}
