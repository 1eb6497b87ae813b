"""A run that nobody has made ─► seconds of its step by parts, memory, energy and money, each with an interval."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from paceline.costs.footprint import Footprint, ModelFacts, RankWork, optimizer_bytes, training_flops
from paceline.link import NetworkLink
from paceline.predict.compute import Compute, Passes, ReplayableModel, model_digest
from paceline.predict.deviations import deviation_of_stack, deviation_of_step
from paceline.predict.estimate import Estimate
from paceline.predict.links import LinkCosts
from paceline.predict.memory import MemoryNeed, MemoryPredictor
from paceline.predict.operations import OperationTimer, peak_of
from paceline.predict.rank_passes import RankClock
from paceline.predict.simulate import combined
from paceline.predict.step_inputs import Parts, StepInputs
from paceline.predict.timeline import time_step
from paceline.predict.transfers import IN_PROCESS, Costs
from paceline.runs.traced_model import TracedModel
from paceline.spec import Execution, Precision, RunSpec
from paceline.strategies import Strategy, strategy
from paceline.systems.hardware import Hardware, StrategyOverhead

# What a worker's speed depends on, its device aside: framework, precision, execution, optimizer, whether it casts, and
# how many slices of one GPU compute at the same time.
ComputeKey = tuple[str, Precision, Execution, str, bool, float]


@dataclass(frozen=True)
class Prediction:
    """What one configuration is expected to do."""

    spec: RunSpec
    parts: Parts
    # Relative, of this run against others of the same programs, and of those programs as a whole: what layouts of one
    # stack have in common does not count between them.
    deviation: float
    # Worked out when it is asked for: a peak on a GPU may have to be traced first, which takes seconds.
    memory_need: Callable[[], MemoryNeed]
    memory_limit_bytes: float
    joules_per_step: float
    devices: int
    samples_per_epoch: int
    # Where the seconds of computation come from.
    source: str
    price_per_device_hour: float | None = None
    # Of the same global (or local) batch on one worker, where it is known.
    single_step_seconds: float | None = None
    # Operations of a step that the model itself asks for, the most that a device makes in a second, tokens of a sample.
    model_flops: float = 0.0
    peak_flops_per_second: float = 0.0
    tokens_per_sample: int | None = None
    stack_deviation: float = 0.0

    @property
    def whole_deviation(self) -> float:
        """Relative, from the truth: what intervals go by."""
        return combined(self.deviation, self.stack_deviation)

    @cached_property
    def step_seconds(self) -> Estimate:
        """Seconds of one optimizer step."""
        return Estimate.around(self.parts.step, self.whole_deviation)

    @property
    def samples_per_second(self) -> Estimate:
        """Samples per second of all workers together."""
        return self.step_seconds.inverted(self.spec.samples_per_step)

    @property
    def epoch_seconds(self) -> Estimate:
        """Seconds of one pass over the data, start-up aside."""
        return self.step_seconds.times(self.samples_per_epoch / self.spec.samples_per_step)

    @property
    def utilisation(self) -> float:
        """Model FLOP utilisation (MFU): operations that the model asks for, over what its devices could make.

        As PaLM counts (Chowdhery et al., 2022, appendix B): six for each parameter and token, attention in full.
        """
        most = self.parts.step * self.devices * self.peak_flops_per_second
        return self.model_flops / most if most else 0.0

    @property
    def tokens_per_second(self) -> Estimate | None:
        """Tokens per second of each device; None for models that are not trained on tokens."""
        if self.tokens_per_sample is None:
            return None
        return self.samples_per_second.times(self.tokens_per_sample / self.devices)

    @property
    def joules_per_epoch(self) -> Estimate:
        """Joules of all devices for one pass over the data."""
        steps = self.samples_per_epoch / self.spec.samples_per_step
        return Estimate.around(self.joules_per_step * steps, self.whole_deviation)

    @property
    def cost_per_epoch(self) -> Estimate | None:
        """Money for all devices by the hour; None without a price."""
        if self.price_per_device_hour is None:
            return None
        return self.epoch_seconds.times(self.devices * self.price_per_device_hour / 3600)

    @property
    def speedup(self) -> float | None:
        """How many times as fast as one worker it is."""
        if self.single_step_seconds is None:
            return None
        share = 1 if self.spec.scaling == "strong" else self.spec.workers
        return self.single_step_seconds * share / self.parts.step

    @property
    def efficiency(self) -> float | None:
        """The speedup as a share of the number of workers."""
        return None if self.speedup is None else self.speedup / self.spec.workers

    @cached_property
    def memory(self) -> MemoryNeed:
        """What the rank that holds most needs, and how that is known."""
        return self.memory_need()

    @property
    def memory_bytes(self) -> Estimate:
        """Bytes of the rank that holds most, at its peak."""
        return self.memory.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether a worker has the memory for the peak."""
        return self.memory.fits(self.memory_limit_bytes)


@dataclass(frozen=True)
class Predictor:
    """Predicts runs of one model on one system; what the runs have in common is computed once."""

    hardware: Hardware
    model: ModelFacts
    samples_per_epoch: int
    price_per_device_hour: float | None = None
    # Of the samples, as a process holds them.
    data_bytes: float = 0.0
    # Of a user's model: its operations, traced when they are asked for.
    traced: TracedModel | None = None
    tokens_per_sample: int | None = None
    # The model as it can be traced with its calls, where such calls were replayed on the system.
    replayable: ReplayableModel | None = None
    # What operations take on the system, and passes of ranks; predictors of other models may share them.
    timer: OperationTimer | None = None
    clocks: dict[ComputeKey, RankClock] = field(default_factory=dict)
    _passes: dict[tuple[int, float], Passes] = field(default_factory=dict)
    _costs: dict[tuple[str, str, NetworkLink | None], Costs] = field(default_factory=dict)
    _singles: dict[tuple[int, int], float] = field(default_factory=dict)
    _filled: dict[tuple[float, float], list[tuple[int, float]]] = field(default_factory=dict)
    _compute: dict[ComputeKey, Compute] = field(default_factory=dict)
    _timers: dict[float, OperationTimer] = field(default_factory=dict)

    @cached_property
    def _overheads(self) -> dict[str, StrategyOverhead]:
        return {overhead.strategy: overhead for overhead in self.hardware.calibrated.overheads}

    def overhead(self, chosen: Strategy) -> StrategyOverhead | None:
        """What the strategy's software takes: as it was timed itself, or as the most similar one that was."""
        names = (chosen.name, *chosen.traits.calibrated_like)
        return next((self._overheads[name] for name in names if name in self._overheads), None)

    @cached_property
    def digest(self) -> str:
        """The identity of the model's counts."""
        return model_digest(self.model)

    def predict(self, spec: RunSpec, footprint: Footprint | None = None) -> Prediction:
        """The prediction for a configuration; its footprint is computed unless it is passed."""
        chosen = strategy(spec.strategy)
        footprint = footprint or chosen.footprint(spec, self.model)
        inputs = self._inputs(spec, chosen, footprint)
        parts = time_step(footprint, inputs)
        return Prediction(
            spec, parts, deviation=deviation_of_step(parts, inputs, footprint),
            memory_need=lambda: self._memory.need(spec, footprint, self._microbatch(spec, chosen, footprint)),
            memory_limit_bytes=self.memory_limit,
            joules_per_step=self._joules(parts, footprint),
            devices=footprint.ranks if self.hardware.kind == "cpu" else spec.workers,
            # Generated data may have fewer samples by default than a batch; an epoch has a step.
            samples_per_epoch=max(self.samples_per_epoch, spec.samples_per_step), source=inputs.passes.source,
            price_per_device_hour=self.price_per_device_hour, single_step_seconds=self._single(spec, chosen),
            model_flops=training_flops(self.model, spec.samples_per_step),
            peak_flops_per_second=peak_of(self.hardware.device, spec.precision),
            tokens_per_sample=self.tokens_per_sample, stack_deviation=deviation_of_stack(self.hardware, inputs.passes),
        )  # fmt: skip

    def parts(self, spec: RunSpec, footprint: Footprint) -> Parts:
        """Where the seconds of a step go, without memory, energy or cost."""
        return time_step(footprint, self._inputs(spec, strategy(spec.strategy), footprint))

    def _inputs(self, spec: RunSpec, chosen: Strategy, footprint: Footprint, busy: float | None = None) -> StepInputs:
        microbatch, microbatches = self._microbatch(spec, chosen, footprint), _passes_of(footprint, spec)
        busy = self._busy_slices(spec, chosen, footprint) if busy is None else busy
        clock, work = self._clock(spec, chosen, busy), footprint.groups[0].work
        crowding = self._crowding(footprint, spec, chosen)
        rank_passes = clock.passes(work).crowded(crowding) if clock is not None and work is not None else None
        return StepInputs(
            self.hardware, self._transfers(chosen, spec), self.model,
            rank_passes or self.passes(chosen, spec, microbatch, busy),
            crowding=crowding, synchronous=chosen.synchronous, workers=spec.workers,
            flops=training_flops(self.model, microbatch),
            state_bytes_per_parameter=optimizer_bytes(spec.optimizer, 1, 0),
            # A pipeline of one worker makes all its passes by itself.
            earlier_passes=0 if footprint.stages and footprint.stages.workers > 1 else microbatches - 1,
            overhead=self.overhead(chosen),
            splits_layers=chosen.traits.splits_layers(spec), clock=clock if rank_passes else None, filled=self._filled,
            offloads=spec.offload,
        )  # fmt: skip

    def _microbatch(self, spec: RunSpec, chosen: Strategy, footprint: Footprint) -> float:
        """Samples of one forward pass of a worker."""
        return spec.samples_per_step / max(1, chosen.traits.replicas(spec)) / _passes_of(footprint, spec)

    def memory(self, spec: RunSpec, footprint: Footprint) -> tuple[Estimate, float]:
        """Bytes that the rank which holds most needs at its peak, and the most that would fit a worker."""
        samples = spec.samples_per_step / max(1, strategy(spec.strategy).traits.replicas(spec))
        need = self._memory.need(spec, footprint, samples / _passes_of(footprint, spec))
        return need.peak_bytes, need.most_that_fits(self.memory_limit)

    @cached_property
    def _memory(self) -> MemoryPredictor:
        return MemoryPredictor(self.hardware, self.model, self.digest, self.data_bytes, self.overhead)

    @property
    def memory_limit(self) -> float:
        """Bytes that a worker has."""
        return self._memory.limit_bytes

    def _busy_slices(self, spec: RunSpec, chosen: Strategy, footprint: Footprint) -> float:
        """How many slices of one GPU compute at the same time: in a pipeline, those that do not wait for others."""
        if not self.hardware.slices or spec.workers == 1:
            return 1.0
        if footprint.stages is None or footprint.stages.workers == 1:
            return float(min(spec.workers, self.hardware.slices))
        alone = time_step(footprint, self._inputs(spec, chosen, footprint, busy=1.0))
        return max(1.0, round(alone.cpu_seconds / alone.step, 1))

    def passes(self, chosen: Strategy, spec: RunSpec, samples: float, busy: float = 1.0) -> Passes:
        """Seconds of computation for a local batch, in the run's framework, precision and execution."""
        compute = self.compute(chosen, spec, busy)
        key = id(compute), samples
        if key not in self._passes:
            self._passes[key] = compute.passes(self.model, samples, self.digest)
        return self._passes[key]

    def rank_passes(self, chosen: Strategy, spec: RunSpec, work: RankWork) -> Passes:
        """Seconds of a rank's own part of the model on GPUs; elsewhere those of the whole model on as many samples."""
        clock = self._clock(spec, chosen)
        return clock.passes(work) if clock is not None else self.passes(chosen, spec, work.samples)

    def compute(self, chosen: Strategy, spec: RunSpec, busy: float = 1.0) -> Compute:
        """How fast the system computes in a strategy's framework and numbers while so many slices of a GPU do."""
        key = _compute_key(chosen, spec, busy)
        if key not in self._compute:
            framework, precision, execution, _, casts, busy = key
            self._compute[key] = Compute(
                self.hardware,
                framework,
                precision,
                execution,
                spec.optimizer,
                self._timer(busy),
                self.traced,
                casts,
                self.replayable,
            )
        return self._compute[key]

    def _timer(self, busy: float) -> OperationTimer:
        if busy == 1 and self.timer is not None:
            return self.timer
        if busy not in self._timers:
            self._timers[busy] = OperationTimer(self.hardware, busy)
        return self._timers[busy]

    def _clock(self, spec: RunSpec, chosen: Strategy, busy: float = 1.0) -> RankClock | None:
        """The clock for ranks' parts of the model on GPUs; None where its steps were measured or traced."""
        if self.hardware.kind == "cpu" or self.traced is not None:
            return None
        compute = self.compute(chosen, spec, busy)
        if compute.measured_steps(self.digest) is not None:
            return None
        key = _compute_key(chosen, spec, busy)
        if key not in self.clocks:
            self.clocks[key] = RankClock(compute)
        return self.clocks[key]

    def _single(self, spec: RunSpec, chosen: Strategy) -> float:
        """Seconds of a step with the same samples on one worker, without a strategy."""
        samples = spec.global_batch or spec.local_batch or 1
        key = id(self.compute(chosen, spec)), samples
        if key not in self._singles:
            clock = self._clock(spec, chosen)
            passes = clock.passes(RankWork(self.model, samples)) if clock else self.passes(chosen, spec, samples)
            update = self.model.parameters * passes.update_per_parameter
            total = max(passes.total, sum(passes.host_forward) + sum(passes.host_backward))
            fitted = self.hardware.software.step_seconds if self.hardware.software else 0.0
            self._singles[key] = total + passes.overhead + fitted + update
        return self._singles[key]

    def _transfers(self, chosen: Strategy, spec: RunSpec) -> Costs:
        transport, algorithm = transport_of(chosen, spec), chosen.traits.collective_algorithm(spec)
        link = spec.link if transport != IN_PROCESS else None
        if (key := (transport, algorithm, link)) not in self._costs:
            self._costs[key] = Costs(self.hardware, transport, algorithm, LinkCosts(link) if link else None)
        return self._costs[key]

    def _crowding(self, footprint: Footprint, spec: RunSpec, chosen: Strategy) -> float:
        """The slowdown by workers that share a CPU's caches, memory and, if oversubscribed, cores."""
        if self.hardware.kind != "cpu":
            return self._slices_crowding(spec.workers)
        busy = 1 if footprint.stages and footprint.stages.microbatches == 1 else spec.workers
        cores = self.hardware.node_devices
        shared = 1.0
        if busy > 1 and cores > 1:
            shared += (self._all_busy(chosen) - 1) * (min(busy, cores) - 1) / (cores - 1)
        return shared * max(1.0, busy * spec.cores_per_worker / cores)

    def _slices_crowding(self, workers: int) -> float:
        """The slowdown by slices that share a GPU's memory; 1 on whole GPUs.

        Where it was measured by kind of operation, it is in the operations' times already.
        """
        slices = self.hardware.slices or 1
        measured = self.hardware.calibrated.crowding.get(str(slices), 1.0)
        return 1 + (measured - 1) * (min(workers, slices) - 1) / (slices - 1) if slices > 1 else 1.0

    def _all_busy(self, chosen: Strategy) -> float:
        """The slowdown of computation when every core is busy: measured on this model, or by its operations.

        It is no less than what was measured of a whole model.
        """
        known = self.hardware.calibrated
        measured = known.crowding.get(str(self.hardware.node_devices))
        single = Compute(self.hardware, chosen.framework or "torch", "fp32")
        if measured is not None and single.measured_steps(self.digest):
            return measured
        return max(measured or 1.0, self._all_cores_factor)

    @cached_property
    def _all_cores_factor(self) -> float:
        return Compute(self.hardware, "torch", "fp32", timer=self._timer(1.0)).all_cores_factor(self.model)

    def _joules(self, parts: Parts, footprint: Footprint) -> float:
        device, idle = self.hardware.device, parts.bubble + parts.waiting
        return footprint.ranks * (device.busy_watts.value * (parts.step - idle) + device.idle_watts.value * idle)


def _compute_key(chosen: Strategy, spec: RunSpec, busy: float) -> ComputeKey:
    casts = chosen.traits.numbers(spec) == "cast"
    return chosen.framework or "torch", spec.precision, spec.execution, spec.optimizer.name, casts, busy


def _passes_of(footprint: Footprint, spec: RunSpec) -> int:
    """Forward passes of a worker in one step, each of a part of its samples."""
    stages = footprint.stages
    return stages.microbatches * stages.accumulation if stages else spec.accumulation


def transport_of(chosen: Strategy, spec: RunSpec) -> str:
    """What carries the messages: memory of one process, gRPC of TensorFlow's workers, gloo on cores, NCCL on GPUs."""
    if spec.device != "cpu":
        return "nccl"
    if sum(role.processes for role in chosen.needs.roles(spec)) == 1:
        return IN_PROCESS
    return "grpc" if chosen.framework == "tensorflow" else "gloo"
