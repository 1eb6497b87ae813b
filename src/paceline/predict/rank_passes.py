"""Seconds of a rank's own part of a model on a GPU: what its device computes, and what its host takes to ask for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from paceline.costs.footprint import Block, RankWork
from paceline.costs.fusion import fused, unfused
from paceline.costs.layer_operations import layer_operations, loss_operations, recomputed
from paceline.costs.layers import LayerFacts
from paceline.costs.operations import LayerOperations, Operation, memory, update
from paceline.costs.pass_operations import Pass
from paceline.predict.compute import Compute, Passes
from paceline.predict.operations import OperationTimer, Source, Spread, step_deviation
from paceline.predict.steps import BESIDE, HOST_DEVIATION, StepSeconds, host_seconds, start_units, unit_operations
from paceline.spec import Precision, Recompute
from paceline.systems.software import AttentionKernel

# What DTensor takes the host for each operation on a part of a layer, over a plain one. As those of `steps.py`, from
# steps of GPT-2 with 64 tokens on slices of an H200: 145 ms with tensor=2 where torch-ddp takes 25.
SPLIT_HOST = 6.8
# Where a framework compiles a whole step, the host starts it as one program and goes on to the next while the device
# computes: a step takes the longer of both. JAX beside an H200 made steps of a small CNN in 0.3, 0.4, 0.41 and 0.71 ms
# with 128, 256 and 512 samples and in fp32 and bf16 (docs/results/h200.md): their middle, and how far they lie apart.
COMPILED_STEP_SECONDS, COMPILED_STEP_DEVIATION = 4.3e-4, 0.36
# Frameworks whose compiled step asks for its kernels itself.
WHOLE_STEP_FRAMEWORKS = ("jax",)
# Seconds of the device, those of the host, and the device's by how far off they may be.
PassTimes = tuple[float, float, float]


@dataclass(frozen=True)
class LayerTimes:
    """Both passes of one layer, and where the device's seconds come from."""

    forward: PassTimes
    backward: PassTimes
    sources: tuple[tuple[Source, float], ...]


@dataclass(frozen=True)
class ReplayedStep:
    """A step of a whole model by its very calls, and its device seconds over what its layers' operations add up to.

    What both streams wait for each other within the step counts with both.
    """

    step: StepSeconds
    device_factor: float
    # The same for the host's seconds.
    host_factor: float


@dataclass(frozen=True)
class RankClock:
    """Times the passes of ranks in one framework; equal layers are timed once."""

    compute: Compute
    # With the work that they are of, which is known by its place in memory and so must be kept.
    _passes: dict[tuple[int, float, tuple[object, ...]], tuple[RankWork, Passes]] = field(default_factory=dict)
    _known: dict[tuple[LayerFacts, Pass, Recompute, bool], LayerTimes] = field(default_factory=dict)
    _losses: dict[tuple[float, bool, bool], LayerTimes] = field(default_factory=dict)
    _replays: dict[float, ReplayedStep | None] = field(default_factory=dict)

    def passes(self, work: RankWork) -> Passes:
        """Seconds of one forward and backward pass of a rank's samples, for device and host separately."""
        how = (
            work.ways,
            work.recompute,
            work.last,
            work.stretches,
            work.cast,
            work.gathers,
            work.context,
            work.by_dtensor,
        )
        key = id(work.model), work.samples, how
        if key not in self._passes:
            self._passes[key] = work, self._timed(work)
        return self._passes[key][1]

    def _timed(self, work: RankWork) -> Passes:
        sources: dict[Source, float] = {}
        forward: list[PassTimes] = []
        backward: list[PassTimes] = []
        for times, count in self._layers(work):
            forward += [times.forward] * count
            backward += [times.backward] * count
            for source, seconds in times.sources:
                sources[source] = sources.get(source, 0.0) + seconds * count
        if work.last:
            # The loss goes with the last layer.
            for passes in (forward, backward):
                (last, loss), passes[-2:] = passes[-2:], []
                passes.append((last[0] + loss[0], last[1] + loss[1], last[2] + loss[2]))
        # Passes of less than a sample, as of stretches of a sequence, are in proportion.
        part = work.samples / max(1, round(work.samples))
        parameters = work.model.parameters
        asking, unit = self._asking(work)
        device, host, off = (sum(times[which] for times in (*forward, *backward)) for which in (0, 1, 2))
        deviation = step_deviation(off, sources)
        if (replayed := self._replayed(work.samples)) is not None:
            part, asking = part * replayed.device_factor, asking * replayed.host_factor
            sources, deviation = replayed.step.sources, replayed.step.device_deviation
        units = [unit * starting for starting in start_units(layer.name for layer in work.model.layers)]
        host_bound = host * asking + 2 * sum(units) > device * part
        updated = self._timer.timed(update(self._optimizer, parameters)).seconds
        deviation = HOST_DEVIATION if host_bound else deviation
        host_forward, host_backward = (
            tuple(times[1] * asking + beside for times, beside in zip(passes, units, strict=True))
            for passes in (forward, backward)
        )
        if self._starts_whole_steps and device:
            # The nearer the device is to the host's time, the more it matters how long that is.
            started = max(0.0, COMPILED_STEP_SECONDS - updated) / (device * part)
            host_bound = started > 1
            deviation = max(deviation, COMPILED_STEP_DEVIATION * min(1.0, started))
            host_forward, host_backward = (
                tuple(times[0] * part * started for times in passes) for passes in (forward, backward)
            )
        return Passes(
            tuple(times[0] * part for times in forward), tuple(times[0] * part for times in backward),
            overhead=self._beside(updated, device * part, host_bound, replayed.host_factor if replayed else 1.0),
            update_per_parameter=updated / parameters if parameters else 0.0, deviation=deviation,
            source=self.compute.source_text(sources, host_bound),
            host_forward=host_forward, host_backward=host_backward,
        )  # fmt: skip

    def _replayed(self, samples: float) -> ReplayedStep | None:
        """A step of the whole model by its very calls, where these were replayed with so many samples."""
        if samples not in self._replays:
            step, model = self.compute.replayed_step(samples), self.compute.replayable
            self._replays[samples] = None
            if step is not None and model is not None:
                whole = self._layers(RankWork(model.facts, samples, cast=False))
                device, host = (
                    sum((times.forward[which] + times.backward[which]) * count for times, count in whole)
                    for which in (0, 1)
                )
                stretched = step.total / max(step.device, step.host)
                self._replays[samples] = ReplayedStep(
                    step, stretched * step.device_passes / device, stretched * step.host_passes / host if host else 1.0
                )
        return self._replays[samples]

    def _asking(self, work: RankWork) -> tuple[float, float]:
        """How many times as long the host takes for an operation, and its seconds beside each layer and pass."""
        software = self.compute.hardware.software
        if software is not None:
            return 1 + software.host_share_per_split * (work.ways - 1), 0.0
        # A compiler leaves nothing of DTensor in a step.
        split = SPLIT_HOST if work.ways > 1 and work.by_dtensor and not self._compiled else 1.0
        casts = self.compute.casts if work.cast is None else work.cast
        return split, unit_operations(casts, work.gathers, work.ways > 1 and work.by_dtensor) * self._host

    def _beside(self, updated: float, device: float, host_bound: bool, host_factor: float) -> float:
        """Seconds of a step that belong to neither passes nor update."""
        if self.compute.hardware.software is not None:
            # What a fit says of each step has all of this in it.
            return 0.0
        if self._starts_whole_steps:
            # What starting takes is what the host takes for the passes.
            return 0.0
        if self.compute.framework != "torch":
            return max(0.0, COMPILED_STEP_SECONDS - device - updated)
        return max(0.0, (BESIDE + 1) * self._host * host_factor - updated) * host_bound

    def _layers(self, work: RankWork) -> list[tuple[LayerTimes, int]]:
        """Seconds of each run of equal layers with the length of the run, the loss as the last entry."""
        precision: Precision = self.compute.precision
        samples = max(1, round(work.samples))
        fitted = self.compute.hardware.software is not None
        # Norms of programs that were fitted to are whole.
        casts = self.compute.casts if work.cast is None else work.cast
        if casts:
            precision = "bf16-pure"
        stretches = 1 if fitted else work.stretches
        divided = stretches, work.context, work.by_dtensor
        elements, trained, layers = work.model.input_elements, not work.model.input_elements, []
        for layer, count in work.model.runs:
            first = Pass(samples, precision, elements or layer.output_elements, trained, *divided)
            trained, elements = trained or layer.parameters > 0, layer.output_elements
            # What a layer is given differs for the first of its like alone.
            others, rest = first, count
            if first.input_elements != elements or first.sends_back != trained:
                others, rest = Pass(samples, precision, elements, trained, *divided), count - 1
                layers.append((self._layer(layer, first, work), 1))
            if rest:
                layers.append((self._layer(layer, others, work), rest))
        if work.last:
            # A compiler makes one kernel of it, split or not; programs that were fitted to have one of their own.
            split = work.ways > 1 and work.by_dtensor and not fitted and not self._compiled
            loss = self._loss(samples * elements / work.ways, casts and not fitted, split)
            software = self.compute.hardware.software
            layers.append((_longer(loss, software.loss_factor) if software else loss, 1))
        return layers

    def _layer(self, layer: LayerFacts, on: Pass, work: RankWork) -> LayerTimes:
        gathers = work.gathers and work.by_dtensor and self.compute.hardware.software is None
        key = layer, on, work.recompute, gathers
        if key not in self._known:
            operations = _as_run(layer, on, work.recompute, self._attention, self._compiled)
            if gathers:
                operations = _with_gathering(operations, layer.parameters)
            self._known[key] = self._times(operations)
        factor = self._block_factors.get(work.block, 1.0) if layer.heads else 1.0
        return self._known[key] if factor == 1 else _longer(self._known[key], factor, factor)

    @cached_property
    def _block_factors(self) -> dict[Block | None, float]:
        """Factors of blocks that logged runs had."""
        software = self.compute.hardware.software
        return dict(software.block_factors.items()) if software else {}

    def _loss(self, outputs: float, casts: bool, split: bool) -> LayerTimes:
        key = outputs, casts, split
        if key not in self._losses:
            on = Pass(1, self.compute.precision)
            self._losses[key] = self._times(loss_operations(outputs, on, casts=casts, split=split))
        return self._losses[key]

    @property
    def _compiled(self) -> bool:
        return "compiled" in self.compute.running

    def _times(self, operations: LayerOperations) -> LayerTimes:
        sources: dict[Source, float] = {}
        forward, backward = self._pass(operations.forward, sources), self._pass(operations.backward, sources)
        return LayerTimes(forward, backward, tuple(sources.items()))

    def _pass(self, operations: Sequence[Operation], sources: dict[Source, float]) -> PassTimes:
        device, count, off = 0.0, 0.0, Spread()
        for operation in operations:
            timed = self._timer.timed(operation)
            seconds = timed.seconds * operation.count
            device, count = device + seconds, count + operation.count
            off.add(timed, seconds)
            sources[timed.source] = sources.get(timed.source, 0.0) + seconds
        return device, count * self._host, off.seconds

    @cached_property
    def _timer(self) -> OperationTimer:
        return self.compute.timer or OperationTimer(self.compute.hardware)

    @cached_property
    def _starts_whole_steps(self) -> bool:
        return self.compute.framework in WHOLE_STEP_FRAMEWORKS and self.compute.hardware.software is None

    @cached_property
    def _host(self) -> float:
        if self._starts_whole_steps:
            return 0.0
        return host_seconds(self._timer, self.compute.running)

    @cached_property
    def _attention(self) -> AttentionKernel:
        return self.compute.hardware.software.attention if self.compute.hardware.software else "fused"

    @cached_property
    def _optimizer(self) -> str:
        name = self.compute.optimizer.update_name
        return "sgd" if name == "lbfgs" else name


def _longer(times: LayerTimes, device: float, host: float = 1.0) -> LayerTimes:
    """The layer where the device and the host take so many times as long."""
    forward, backward = (
        (seconds[0] * device, seconds[1] * host, seconds[2] * device) for seconds in (times.forward, times.backward)
    )
    return LayerTimes(forward, backward, tuple((source, seconds * device) for source, seconds in times.sources))


@lru_cache(maxsize=8192)
def _as_run(
    layer: LayerFacts, on: Pass, recompute: Recompute, attention: AttentionKernel, compiled: bool
) -> LayerOperations:
    """A layer's operations as executed: with recomputation, the attention kernel in use, and compiler fusion."""
    operations = recomputed(layer_operations(replace(layer, name=""), on), recompute, layer)
    passes = [operations.forward, operations.backward]
    if attention == "unfused":
        passes = [tuple(kernel for operation in operations for kernel in _kernels(operation)) for operations in passes]
    if compiled:
        passes = [fused(operations) for operations in passes]
    return LayerOperations(layer.name, *passes)


def _with_gathering(operations: LayerOperations, parameters: int) -> LayerOperations:
    """With what FSDP copies beside: gathered parameters into their arrays before each pass, gradients out of theirs."""
    gathered = memory("bf16", parameters, 2, "cat")
    # Two bytes are read and four written.
    scattered = memory("bf16", parameters, 3, "cat", backward=True)
    return replace(
        operations, forward=(gathered, *operations.forward), backward=(gathered, *operations.backward, scattered)
    )


def _kernels(operation: Operation) -> tuple[Operation, ...]:
    return unfused(operation) if operation.kind == "attention" else (operation,)
