"""Hardware in numbers: what a system file (TOML) says of devices, links and, where it was measured, of this machine.

Every number that describes hardware carries its source. What `paceline calibrate` measured is kept as curves: points,
the straight line through them, and how far the points lie from it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from math import log, sqrt
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from paceline.spec import Execution, Frozen, Precision
from paceline.systems.gpu_memory import GpuMemory
from paceline.systems.local import FRAMEWORKS, Gpu, System
from paceline.systems.operation_times import OperationTimes
from paceline.systems.software import Software

Kind = Literal["cpu", "cuda"]
# Fields that files of earlier versions have and nothing is predicted from.
FORMER_FIELDS = {
    "input_bytes_per_second", "startup_seconds", "cpu_seconds", "layers", "layer_crowding",
    "optimizer_seconds_per_parameter", "step_overhead_seconds", "efficiency", "launch_seconds",
}  # fmt: skip
# The name of the machine at hand, as `paceline calibrate` writes it.
LOCAL = "local"


# Further out, numbers of a description lose their meaning when they are multiplied.
LEAST_RATE, MOST_VALUE = 1e-9, 1e24


class Quantity(Frozen):
    """A number and where it is from."""

    value: float = Field(ge=0, le=MOST_VALUE)
    source: str = Field(min_length=8)

    @field_validator("value")
    @classmethod
    def _no_negative_zero(cls, value: float) -> float:
        return abs(value)


def _divides(quantity: Quantity, info: ValidationInfo) -> Quantity:
    if quantity.value < LEAST_RATE:
        raise ValueError(f"{info.field_name} {quantity.value:g} is out of range; it must be at least {LEAST_RATE:g}")
    return quantity


# A quantity that others are divided by.
Rate = Annotated[Quantity, AfterValidator(_divides)]


class Link(Frozen):
    """A link between two devices: bytes per second one way, and the latency of the first byte."""

    bytes_per_second: Rate
    latency_seconds: Quantity


# What data sheets do not say, for files that say nothing of it either.
PRODUCT_EFFICIENCY = Quantity(
    value=0.7, source="large products of bf16 numbers reach about 70 % of an H100's or H200's peak: our choice"
)
ATTENTION_EFFICIENCY = Quantity(
    value=0.35, source="FlashAttention-2 on an H100 (Shah et al., FlashAttention-3, arXiv 2407.08608, abstract)"
)
HALF_RATE_FLOPS = Quantity(value=4e9, source="a product of 1,260 cubed reaches half the rate of large ones: our choice")
MEMORY_EFFICIENCY = Quantity(value=0.8, source="streaming kernels reach about 80 % of the bandwidth: our choice")
HOST_SECONDS_PER_OPERATION: dict[Execution, Quantity] = {
    "eager": Quantity(value=3.5e-5, source="eager PyTorch 2.11 beside an H200: 20 to 45 microseconds, measured"),
    "compiled": Quantity(value=4.0e-5, source="compiled PyTorch 2.11 beside an H200: 1.1 times eager's, measured"),
    "graph": Quantity(value=1.0e-7, source="replaying a CUDA graph, 0.07 microseconds for each kernel, measured"),
}
HOST_LINK = Quantity(value=25e9, source="PCIe 4.0 with 16 lanes, 32 GB/s one way, 80 % of it: our choice")
HOST_UPDATES = Quantity(
    value=50e9,
    source="fused Adam of PyTorch 2.13 on one core of an AMD EPYC (Zen 5) moves 55 to 68 GB/s, measured; processes of "
    "a node share its memory: our choice",
)

# The same of a core.
_OF_A_CORE = "PyTorch 2.13 on one core of an AMD EPYC (Zen 5), measured by paceline calibrate"
CORE_DEFAULTS: dict[str, Any] = {
    "product_efficiency": {"value": 0.65, "source": _OF_A_CORE},
    "half_rate_flops": {"value": 1e6, "source": _OF_A_CORE},
    "memory_efficiency": {"value": 0.8, "source": _OF_A_CORE},
    "host_seconds_per_operation": {"eager": {"value": 1e-5, "source": _OF_A_CORE}},
}


class Device(Frozen):
    """What a worker computes on."""

    name: str
    memory_bytes: Quantity
    memory_bytes_per_second: Rate
    # At most, by precision.
    flops_per_second: dict[Precision, Rate]
    # The largest share of the peak that products and convolutions reach, and how many floating-point
    # operations one has that reaches half of that, in the numbers that the device multiplies fastest; in others as many
    # fewer as they are slower.
    product_efficiency: Rate = PRODUCT_EFFICIENCY
    half_rate_flops: Quantity = HALF_RATE_FLOPS
    # The share that attention reaches, of the operations that a causal mask leaves.
    attention_efficiency: Rate = ATTENTION_EFFICIENCY
    # The share of the bandwidth that memory-bound operations reach.
    memory_efficiency: Rate = MEMORY_EFFICIENCY
    # What the host takes to ask for one operation, by how steps run; `graph` counts for `compiled+graph` too.
    host_seconds_per_operation: dict[Execution, Quantity] = HOST_SECONDS_PER_OPERATION
    busy_watts: Quantity
    idle_watts: Quantity
    # Held before the first tensor is there: driver, kernels, buffers of the collectives.
    reserved_bytes: Quantity
    # Of GPUs: what goes to the host's memory in a second, and what the host moves of it in an update, where shards of
    # parameters wait there.
    host_link_bytes_per_second: Rate = HOST_LINK
    host_update_bytes_per_second: Rate = HOST_UPDATES
    # Of GPUs: what libraries take beside tensors, and which kernels they choose.
    memory_behaviour: GpuMemory = GpuMemory()

    @field_validator("flops_per_second")
    @classmethod
    def _with_fp32(cls, rates: dict[Precision, Rate]) -> dict[Precision, Rate]:
        if "fp32" not in rates:
            raise ValueError("flops_per_second has no fp32, in which every device computes; write its peak")
        return rates


class Curve(Frozen):
    """Measured values over a size: seconds or bytes."""

    sizes: tuple[float, ...]
    values: tuple[float, ...]
    # The line through the points: `fixed + slope * size`; and how far they lie from it, as a relative deviation.
    fixed: float
    slope: float
    residual: float

    @model_validator(mode="after")
    def _that_go_together(self) -> Self:
        if len(self.sizes) != len(self.values) or min((*self.values, self.fixed, self.slope)) < 0:
            raise ValueError("a curve has a value for each of its sizes, and none below zero; calibrate again")
        return self

    @classmethod
    def through(cls, sizes: Sequence[float], values: Sequence[float]) -> Self:
        """The line with the least relative errors; neither its fixed part nor its slope is below zero."""
        fixed, slope = _line(sizes, values)
        errors = [(fixed + slope * size) / value - 1 for size, value in zip(sizes, values, strict=True) if value]
        freedom = max(1, len(errors) - 2)
        residual = sqrt(sum(error * error for error in errors) / freedom) if len(errors) > 2 else 0.0
        return cls(sizes=tuple(sizes), values=tuple(values), fixed=fixed, slope=slope, residual=residual)

    def at(self, size: float) -> float:
        """The value at this size: the line, corrected by the residuals of the nearest measured points."""
        return (self.fixed + self.slope * size) * self._correction(size)

    def _correction(self, size: float) -> float:
        logs, ratios = self._ratios
        if not logs or size <= 0:
            return 1.0
        place = log(size)
        after = bisect_left(logs, place)
        if after == 0:
            return ratios[0]
        if after == len(logs):
            return ratios[-1]
        share = (place - logs[after - 1]) / (logs[after] - logs[after - 1])
        return ratios[after - 1] + share * (ratios[after] - ratios[after - 1])

    @cached_property
    def _ratios(self) -> tuple[list[float], list[float]]:
        points = sorted((size, value) for size, value in zip(self.sizes, self.values, strict=True) if size > 0)
        known = [(log(size), value / line) for size, value in points if (line := self.fixed + self.slope * size) > 0]
        return [place for place, _ in known], [ratio for _, ratio in known]


def _line(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """A least-squares line of relative errors, so that small and large sizes weigh the same."""
    weights = [1 / value**2 for value in values]
    total = sum(weights)
    mean_size = sum(w * s for w, s in zip(weights, sizes, strict=True)) / total
    mean_value = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    spread = sum(w * (s - mean_size) ** 2 for w, s in zip(weights, sizes, strict=True))
    if not spread:
        return mean_value, 0.0
    both = sum(w * (s - mean_size) * (v - mean_value) for w, s, v in zip(weights, sizes, values, strict=True))
    slope = max(0.0, both / spread)
    fixed = mean_value - slope * mean_size
    if fixed < 0:
        over = sum(w * s * v for w, s, v in zip(weights, sizes, values, strict=True))
        return 0.0, over / sum(w * s * s for w, s in zip(weights, sizes, strict=True))
    return fixed, slope


class Collective(Frozen):
    """One kind of transfer over one transport between so many ranks: seconds over bytes."""

    transport: str
    kind: str
    ranks: int
    curve: Curve


class StepCurve(Frozen):
    """Steps of one model on one worker: seconds over the local batch."""

    framework: str
    model: str
    digest: str
    precision: Precision
    seconds: Curve


class LayerScratch(Frozen):
    """Temporary memory that a framework takes, beside tensors, in the passes of one kind of layer."""

    framework: str
    kind: str
    per_weight_byte: float
    # Of what the layer is given and what it keeps.
    per_activation_byte: float


class MemoryFit(Frozen):
    """Bytes that a process holds beyond its tensors and its data: a base, and a share of what the passes take."""

    framework: str
    base_bytes: float
    slack: float
    residual: float
    # The model that it was measured with, and its points over the local batch: an allocator does not grow evenly.
    digest: str = ""
    points: Curve | None = None
    scratch: tuple[LayerScratch, ...] = ()


class StrategyOverhead(Frozen):
    """What a strategy's software costs a rank, beside computing and sending."""

    strategy: str
    # CPU seconds: for each message, or each array of the model where layers are split; and for each byte of the
    # parameters that it computes with.
    seconds_per_message: float
    held_bytes: float
    seconds_per_parameter_byte: float = 0.0
    # Until the other end wakes up: nobody's CPU seconds; and beside, for each message that is too long to go at once.
    waiting_per_message: float = 0.0
    waiting_per_long_message: float = 0.0
    # Beside `held_bytes`, for each byte of the model's parameters.
    held_per_parameter_byte: float = 0.0
    # Beside both, for each byte of activations, of models that it was run with, by their digest.
    held_per_activation_byte: dict[str, float] = {}


class Calibration(Frozen):
    """What was measured on this machine."""

    at: str
    machine: str
    frameworks: dict[str, str]
    steps: tuple[StepCurve, ...] = ()
    collectives: tuple[Collective, ...] = ()
    # By which factor computation takes longer when so many workers compute at the same time, by their number.
    crowding: dict[str, float] = {}
    # The same by kind of operation or name of a pass over memory: when so many cores, or slices of a GPU, compute.
    operation_crowding: dict[str, dict[str, float]] = {}
    # How far repeated runs of one configuration lie apart, as a relative deviation.
    repeat_deviation: float = 0.0
    memory: tuple[MemoryFit, ...] = ()
    overheads: tuple[StrategyOverhead, ...] = ()
    # Of a GPU: its name.
    gpu: str = ""
    # A grid of operations, and the very operations of models that were given.
    operations: tuple[OperationTimes, ...] = ()
    replayed: tuple[OperationTimes, ...] = ()
    # Seconds of the framework's calls that steps of these models make (`Operation.call`).
    replayed_calls: dict[str, float] = {}
    # For which local batches that was done, by the digest of the model.
    replayed_batches: dict[str, tuple[int, ...]] = {}
    # Seconds that the host takes to launch a whole eager step of these models, by precision.
    replayed_hosts: dict[str, dict[str, float]] = {}


NOT_CALIBRATED = Calibration(at="", machine="", frameworks={})


class Hardware(Frozen):
    """A system: nodes of equal devices, the link within a node and the one between nodes."""

    name: str
    about: str
    kind: Kind
    device: Device
    node_devices: int = Field(ge=1)
    inner: Link
    outer: Link
    # Seconds of computation lost in each second in which the device also communicates.
    interference: Quantity
    # How many times as long a transfer takes while the device computes.
    overlap_slowdown: Rate = Quantity(value=1.0, source="not measured: as fast as alone")
    # Relative standard deviation of how slow a rank is in a step.
    straggling: Quantity
    # Relative standard deviation of predictions for this system, where nothing was measured.
    uncertainty: Quantity
    price_per_device_hour: Quantity | None = None
    # What a node's processors have, for shards that wait there; without it, as much as is wanted.
    host_memory_bytes: Quantity | None = None
    calibration: Calibration | None = None
    # Relative speeds of unlike devices, in rank order and over again; none where all are alike.
    speeds: tuple[float, ...] = ()
    # How the programs of logged runs take their steps, where it was fitted to some.
    software: Software | None = None
    # Of a GPU that is cut: into how many slices, each of which is a device.
    slices: int | None = None

    @classmethod
    def read(cls, values: dict[str, Any], where: str) -> Self:
        """The system that a system file describes; what is wrong with it becomes one sentence."""
        values = _without_former_fields(values)
        if values.get("kind") == "cpu" and isinstance(values.get("device"), dict):
            values = {**values, "device": {**CORE_DEFAULTS, **values["device"]}}
        return cls.parse(values, f"system {where}")

    @property
    def calibrated(self) -> Calibration:
        """Its calibration, or one in which nothing was measured."""
        return self.calibration or NOT_CALIBRATED

    @property
    def run_device(self) -> Literal["cpu", "cuda", "cuda-slice"]:
        """The `device` of runs on it."""
        return self.kind if self.slices is None else "cuda-slice"

    @property
    def memory_behaviour(self) -> GpuMemory:
        """What libraries take of the memory of one of its devices, a whole GPU or a slice."""
        return self.device.memory_behaviour.cut_into(self.slices or 1)

    @property
    def measured_elsewhere(self) -> bool:
        """Whether the calibration is of another machine of the same class."""
        return self.calibration is not None and self.name != LOCAL

    def as_system(self, workers: int) -> System:
        """The hardware as a `System`, which strategies check runs against: with enough devices and every framework."""
        gpus = (Gpu(self.device.name, int(self.device.memory_bytes.value)),) * workers if self.kind == "cuda" else ()
        cores = tuple(range(self.node_devices)) if self.kind == "cpu" else (0,)
        memory, frameworks = int(self.device.memory_bytes.value), dict.fromkeys(FRAMEWORKS, "")
        return System(self.device.name, cores, memory, gpus, frameworks=frameworks)

    def speed(self, rank: int) -> float:
        """The speed of a rank's device relative to the described one."""
        return self.speeds[rank % len(self.speeds)] if self.speeds else 1.0


def _without_former_fields(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_former_fields(value) for value in values]
    if isinstance(values, dict):
        return {name: _without_former_fields(value) for name, value in values.items() if name not in FORMER_FIELDS}
    return values
