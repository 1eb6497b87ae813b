"""Seconds of a rank's own part of a model on a GPU: operation by operation, and no less than its host takes to ask."""

from dataclasses import dataclass, field
from functools import cached_property

from paceline.costs.footprint import RankWork
from paceline.costs.operations import Operation, OperationNumbers
from paceline.costs.rank_operations import AttentionKernel, operations_known, rank_operations
from paceline.predict.compute import UPDATE_BYTES_PER_PARAMETER, Compute, Passes
from paceline.spec import Precision
from paceline.systems.hardware import Hardware

# In which numbers a precision multiplies.
NUMBERS: dict[Precision, OperationNumbers] = {
    "fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "bf16-pure": "bf16",
}  # fmt: skip
# Device and host seconds of a forward and a backward pass.
LayerTimes = tuple[float, float, float, float]


@dataclass(frozen=True)
class RankPasses(Passes):
    """Both passes of a rank: device seconds by layer, and what its host takes to ask for them."""

    host_forward: float = 0.0
    host_backward: float = 0.0
    work: RankWork | None = None

    @property
    def host_total(self) -> float:
        """What the host takes for both."""
        return self.host_forward + self.host_backward


@dataclass(frozen=True)
class RankClock:
    """Times passes of ranks on one system in one precision; what ranks have in common is worked out once."""

    hardware: Hardware
    precision: Precision
    _passes: dict[tuple[object, ...], RankPasses] = field(default_factory=dict)

    def passes(self, work: RankWork) -> RankPasses | None:
        """Seconds of one pass of its samples; None where its layers are none whose operations are known."""
        # The model is kept beside what is known of it, so that no other takes its place.
        key = id(work.model), work.samples, work.ways, work.stretches, work.recompute
        if key not in self._passes:
            if not operations_known(work):
                return None
            self._passes[key] = self._timed(work)
        return self._passes[key]

    def _timed(self, work: RankWork) -> RankPasses:
        times = [(self._layer(work, index), count) for index, (_, count) in enumerate(work.model.runs)]
        software = self.hardware.software
        waiting = 1 + (software.host_share_per_split if software else 0.0) * (work.ways - 1)
        return RankPasses(
            forward=tuple(time[0] for time, count in times for _ in range(count)),
            backward=tuple(time[1] for time, count in times for _ in range(count)),
            host_forward=waiting * sum(time[2] * count for time, count in times),
            host_backward=waiting * sum(time[3] * count for time, count in times),
            overhead=software.step_seconds if software else 0.0,
            update_per_parameter=UPDATE_BYTES_PER_PARAMETER / self._memory_bytes_per_second,
            deviation=self.hardware.uncertainty.value,
            source="logged runs" if software else "the data sheet",
            work=work,
        )

    def _layer(self, work: RankWork, index: int) -> LayerTimes:
        layer = work.model.runs[index][0]
        operations = rank_operations(
            layer, work.samples, work.ways, work.stretches, work.recompute, self._attention, NUMBERS[self.precision]
        )
        forward, backward = operations.forward, operations.backward
        return (
            sum(self._seconds(operation) for operation in forward),
            sum(self._seconds(operation) for operation in backward),
            self._asking * sum(operation.count for operation in forward),
            self._asking * sum(operation.count for operation in backward),
        )

    def _seconds(self, operation: Operation) -> float:
        moved = operation.moved_bytes / self._memory_bytes_per_second
        if operation.kind == "memory":
            return moved * operation.count
        # A small product does not fill the device: half of the rate at so many operations, all of it at many more.
        computed = (operation.flops + self._half_rate_flops) / self._products_per_second
        return max(computed, moved) * operation.count

    @cached_property
    def _products_per_second(self) -> float:
        return Compute(self.hardware, "torch", self.precision)._peak * self.hardware.device.product_efficiency.value

    @cached_property
    def _half_rate_flops(self) -> float:
        return self.hardware.device.half_rate_flops.value

    @cached_property
    def _memory_bytes_per_second(self) -> float:
        device = self.hardware.device
        return device.memory_bytes_per_second.value * device.memory_efficiency.value

    @cached_property
    def _asking(self) -> float:
        return self.hardware.device.host_seconds_per_operation["eager"].value

    @cached_property
    def _attention(self) -> AttentionKernel:
        return self.hardware.software.attention if self.hardware.software else "fused"
