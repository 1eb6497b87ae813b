"""Operations of a step ─► seconds of its layers on two streams: the device's, and the host's that asks for them.

A device starts no operation before the host has asked for it, and the host runs ahead of it by a bounded queue; where
it has to wait for a result, both start again together. So a step takes at least the longer of both, and more where
operations that the host is slow to ask for follow others that the device is slow to make. A core is its own host: what
asking takes is part of each of its operations.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from paceline.costs.fusion import fused
from paceline.costs.operations import LOSS, Operation, StepOperations
from paceline.predict.operations import STEP_DEVIATION, OperationTimer, Source, Spread, step_deviation
from paceline.spec import Execution

# Of what the host takes: the same step took from 24 to 33 ms within minutes on one machine.
HOST_DEVIATION = 0.2
# Operations of a step beside its layers: samples and targets are picked, gradients forgotten, the update asked for.
BESIDE = 6
# Kernels that CUDA takes before the host that launches one more has to wait.
QUEUE = 1024
# Steps that are simulated until the host's lead stays the same from step to step.
STEPS = 4
# Seconds of the device, those of the host, and whether the host waits for it.
Launch = tuple[float, float, bool]

# What FSDP takes the host beside each layer and pass (hooks, casts, copies, streams, and starting what gathers), in
# operations of PyTorch. From steps in which there is next to nothing to compute: GPT-2 with 64 tokens on slices of an
# H200 takes 25 ms with torch-ddp and 56 to 65 with two shards, 218 where layers are split as well; the small CNN on one
# slice 2.4 ms with torch-ddp and 6.2 with torch-fsdp.
UNIT_OPERATIONS, GATHERED_UNIT_OPERATIONS, SPLIT_UNIT_OPERATIONS = 8, 32, 64
# A layer of a user's module within a member of a list, such as `blocks.3.attention.query`: FSDP gathers members whole.
LISTED = re.compile(r"((?:.*?\.)?\d+)\.")


def unit_operations(casts: bool, gathers: bool, split: bool = False) -> int:
    """Operations that the host takes as long for as for what FSDP does beside a layer and pass."""
    if gathers:
        return SPLIT_UNIT_OPERATIONS if split else GATHERED_UNIT_OPERATIONS
    return UNIT_OPERATIONS if casts else 0


def start_units(layers: Iterable[str]) -> Iterator[bool]:
    """Whether each layer, in the order in which they run, is the first of what FSDP gathers together."""
    before = None
    for name in layers:
        member = LISTED.match(name)
        unit = member[1] if member else name
        yield unit != before
        before = unit


@dataclass(frozen=True)
class PassSeconds:
    """One pass of one layer: device seconds, host seconds, and the relative uncertainty of the device's.

    `least` is what the device would take if there were next to nothing to compute in each operation.
    """

    device: float
    host: float
    off: float
    least: float


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of each layer's passes (the loss counts with the last layer), of the update, and their source."""

    forward: tuple[PassSeconds, ...]
    backward: tuple[PassSeconds, ...]
    update: PassSeconds
    # Beside layers, of the host.
    beside: float
    # Of the device's seconds, by source.
    sources: dict[Source, float]
    # Longest of both streams, with waits.
    total: float
    # Relative deviation for what lies between its operations.
    between: float = STEP_DEVIATION

    @property
    def device(self) -> float:
        """Device seconds of the whole step."""
        return sum(part.device for part in (*self.forward, *self.backward, self.update))

    @property
    def host(self) -> float:
        """Host seconds of the whole step."""
        return sum(part.host for part in (*self.forward, *self.backward, self.update)) + self.beside

    @property
    def device_passes(self) -> float:
        """Device seconds of both passes, without the update."""
        return self.device - self.update.device

    @property
    def host_passes(self) -> float:
        """Host seconds of both passes, without the update and what is beside."""
        return self.host - self.update.host - self.beside

    @property
    def least(self) -> float:
        """Device seconds of both passes if every operation had next to nothing to compute."""
        return sum(part.least for part in (*self.forward, *self.backward))

    @property
    def host_bound(self) -> bool:
        """Whether the device waits for the host more than the host for the device."""
        return self.host > self.device

    def with_units(self, seconds: float, layers: Sequence[str]) -> "StepSeconds":
        """The same step with a host that takes so many seconds beside each unit of these layers and pass."""
        starts = [*start_units(layers), *[True] * (len(self.forward) - len(layers))]
        forward, backward = (
            tuple(
                replace(part, host=part.host + seconds * starting) for part, starting in zip(parts, starts, strict=True)
            )
            for parts in (self.forward, self.backward)
        )
        slower = replace(self, forward=forward, backward=backward)
        return replace(slower, total=max(self.total, slower.host))

    @property
    def deviation(self) -> float:
        """The relative uncertainty of the stream that decides how long the step takes."""
        return HOST_DEVIATION if self.host_bound else self.device_deviation

    @property
    def device_deviation(self) -> float:
        """The relative uncertainty of the device's seconds."""
        off = sum(part.off for part in (*self.forward, *self.backward, self.update))
        return step_deviation(off, self.sources, self.between)


def step_seconds(
    step: StepOperations, timer: OperationTimer, execution: Execution, host_factor: float = 1.0
) -> StepSeconds:
    """Seconds of every layer of a step under this execution (eager, compiled or graph-captured).

    The host takes `host_factor` times as long for each operation as it does as a rule.
    """
    sources: dict[Source, float] = {}
    launches: list[Launch] = []
    each_host = host_seconds(timer, execution) * host_factor

    def of_pass(operations: Sequence[Operation], compiled: bool = True) -> PassSeconds:
        # What kernels of a call do unseen is in its time, where that was taken.
        visible = [each for each in operations if not (each.inside_call and timer.was_repeated(each))]
        launched = fused(visible) if compiled and "compiled" in execution else visible
        return _pass_seconds(launched, timer, each_host, sources, launches)

    # The loss is beside the model that is compiled.
    forward = [of_pass(layer.forward, layer.layer != LOSS) for layer in step.layers]
    backward = [of_pass(layer.backward, layer.layer != LOSS) for layer in reversed(step.layers)][::-1]
    update = of_pass(step.update)
    beside = BESIDE * (each_host or timer.asking_seconds)
    # Operations of cores were fitted to whole steps, and how far these lie apart counts for itself.
    between = STEP_DEVIATION if timer.hardware.kind == "cuda" else 0.0
    total = two_streams(launches, beside)
    return StepSeconds(tuple(forward), tuple(backward), update, beside, sources, total, between)


def two_streams(launches: Sequence[Launch], beside: float) -> float:
    """Seconds from one step to the next; `beside` is what the host does before each."""
    if not any(asking for _, asking, _ in launches):
        return max(beside, sum(seconds for seconds, _, _ in launches))
    host = device = ended = before = 0.0
    started: deque[float] = deque([0.0] * QUEUE, maxlen=QUEUE)
    for _ in range(STEPS):
        before, host = ended, host + beside
        for seconds, asking, waits in launches:
            host = max(host, started[0]) + asking
            started.append(max(device, host))
            device = started[-1] + seconds
            if waits:
                host = device
        ended = max(host, device)
    return ended - before


def like_layers(step: StepSeconds, other: StepSeconds) -> StepSeconds:
    """The step with its seconds assigned to the layers of another step: one to one if the counts agree, else shared."""
    if len(step.forward) == len(other.forward):
        return step
    forward, backward = (_shared_out(getattr(step, name), getattr(other, name)) for name in ("forward", "backward"))
    return replace(step, forward=forward, backward=backward)


def _shared_out(parts: Sequence[PassSeconds], like: Sequence[PassSeconds]) -> tuple[PassSeconds, ...]:
    sums = [sum(getattr(part, field.name) for part in parts) for field in fields(PassSeconds)]
    total = sum(part.device for part in like) or 1.0
    shares = [part.device / total for part in like]
    return tuple(PassSeconds(*(value * share for value in sums)) for share in shares)


def _pass_seconds(
    operations: Sequence[Operation], timer: OperationTimer, each_host: float, sources: dict[Source, float],
    launches: list[Launch],
) -> PassSeconds:  # fmt: skip
    device, host, off, least = 0.0, 0.0, Spread(), 0.0
    for operation in operations:
        timed = timer.timed(operation)
        seconds, asking = timed.seconds * operation.count, each_host * operation.count
        sources[timed.source] = sources.get(timed.source, 0.0) + seconds
        device, host = device + seconds, host + asking
        off.add(timed, seconds)
        least += min(timed.seconds, timer.shortest_seconds + timer.asking_seconds) * operation.count
        launches.append((seconds, asking, operation.waits))
    return PassSeconds(device, host, off.seconds, least)


def host_seconds(timer: OperationTimer, execution: Execution) -> float:
    """Seconds that the host takes to launch one operation; none where a core asks itself."""
    if timer.hardware.kind == "cpu":
        return 0.0
    by_execution = timer.hardware.device.host_seconds_per_operation
    name: Execution = "graph" if "graph" in execution else execution
    launch_seconds = by_execution.get(name) or by_execution.get("eager")
    return launch_seconds.value if launch_seconds else 0.0
