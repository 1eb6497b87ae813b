"""Seconds that a device computes for each layer of a model: from measured steps, else from its operations."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from paceline.costs.footprint import ModelFacts
from paceline.costs.layer_operations import model_operations
from paceline.predict.operations import OperationTimer, Source
from paceline.predict.steps import StepSeconds, host_seconds, like_layers, step_seconds, unit_operations
from paceline.runs.traced_model import TracedModel
from paceline.spec import Execution, Optimizer, Precision
from paceline.systems.hardware import Hardware, StepCurve

DIGEST_LENGTH = 12
# Where seconds come from that nobody measured.
DATA_SHEET = "the data sheet"
USUAL_OPTIMIZER = Optimizer()
# Samples of a worker as a rule, where their number matters little.
USUAL_SAMPLES = 32
# The share of a step that must have been replayed for it to go by that.
MOSTLY = 0.8


@dataclass(frozen=True)
class Passes:
    """Seconds of each layer's forward and backward pass, and of all that a step does beside them."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    overhead: float
    update_per_parameter: float
    # Relative deviation of these seconds from the truth, and where they come from.
    deviation: float
    source: str
    # Seconds of launching all layers, however little of each there is to compute.
    least: float = 0.0
    # Seconds that the host takes to ask for each layer's operations of a pass, where the device does not wait for it
    # within `forward` and `backward`: a micro-batch of a layer takes at least these. Empty where they are not known.
    host_forward: tuple[float, ...] = ()
    host_backward: tuple[float, ...] = ()

    @cached_property
    def forward_total(self) -> float:
        """Seconds of all layers' forward passes."""
        return sum(self.forward)

    @cached_property
    def backward_total(self) -> float:
        """Seconds of all layers' backward passes."""
        return sum(self.backward)

    @property
    def total(self) -> float:
        """Seconds of both passes of all layers."""
        return self.forward_total + self.backward_total

    def crowded(self, factor: float) -> "Passes":
        """The passes slowed down by other workers on the device; the host's seconds stay."""
        if factor == 1:
            return self
        forward, backward = (tuple(seconds * factor for seconds in passes) for passes in (self.forward, self.backward))
        return replace(self, forward=forward, backward=backward)

    @cached_property
    def backward_done(self) -> list[float]:
        """The share of the backward pass that is done after each layer, from the last one on."""
        return [done / (self.backward_total or 1.0) for done in accumulate(reversed(self.backward))]


def model_digest(model: ModelFacts) -> str:
    """The identity of a model's counts: layers of the same sizes in the same order take the same time."""
    text = repr([(layer.parameters, layer.forward_flops, layer.output_elements) for layer in model.layers])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class ReplayableModel:
    """A model that can be traced with its calls."""

    facts: ModelFacts
    traced: TracedModel

    @cached_property
    def digest(self) -> str:
        """The identity of its counts."""
        return model_digest(self.facts)


@dataclass(frozen=True)
class Compute:
    """Steps of one framework at one precision on one worker of a system."""

    hardware: Hardware
    framework: str
    precision: Precision
    execution: Execution = "eager"
    optimizer: Optimizer = USUAL_OPTIMIZER
    # Shared by all that is predicted for one system: what operations take does not depend on the rest.
    timer: OperationTimer | None = None
    # Of a user's model: its operations as they were traced.
    traced: TracedModel | None = None
    # Whether passes compute in the run's numbers throughout, where autocast would leave norms and sums wide.
    casts: bool = False
    # The whole model, whose very calls may have been repeated on this device, and its traces.
    replayable: "ReplayableModel | None" = None

    def passes(self, model: ModelFacts, samples: float, digest: str | None = None) -> Passes:
        """Seconds of a local batch: as measured where this model was, else put together from its operations."""
        curve = self.measured_steps(digest if digest is not None else model_digest(model))
        by_layer = self._by_operations(model, samples, self.traced if curve is None else None)
        if curve is None:
            return by_layer
        update = by_layer.update_per_parameter * model.parameters
        wanted = max(0.0, curve.seconds.at(samples) - update)
        scale = wanted / (by_layer.total + by_layer.overhead)
        return replace(
            by_layer,
            forward=tuple(seconds * scale for seconds in by_layer.forward),
            backward=tuple(seconds * scale for seconds in by_layer.backward),
            overhead=by_layer.overhead * scale,
            deviation=max(curve.seconds.residual / 2, self.hardware.calibrated.repeat_deviation),
            source=f"steps of this model, measured {self._where}",
            least=min(by_layer.least, wanted),
        )

    def source_text(self, sources: Mapping[Source, float], host_bound: bool) -> str:
        """Where the seconds come from, in words, and whether the host is the bottleneck."""
        names: dict[Source, str] = {
            "replayed": f"operations of this model, replayed {self._where}",
            "grid": f"a grid of operations, measured {self._where}",
            "data sheet": "numbers fitted to logged runs" if self.hardware.software else DATA_SHEET,
        }
        source: Source = max(sources, key=lambda name: sources[name], default="data sheet")
        text = names[source]
        if self.hardware.kind == "cpu" and source == "data sheet":
            return f"{text}, because no operations were timed: run paceline calibrate"
        return f"{text}; the host takes longer to launch kernels than the GPU to run them" if host_bound else text

    def replayed_step(self, samples: float) -> StepSeconds | None:
        """A step of the whole model by its very calls, where most of its seconds were replayed with such a batch."""
        model, calibration = self.replayable, self.hardware.calibrated
        if model is None or samples not in calibration.replayed_batches.get(model.digest, ()):
            return None
        operations = model.traced.exactly(int(samples), self.precision, self.optimizer)
        if operations is None or self.framework != "torch":
            return None
        timer = self.timer or OperationTimer(self.hardware)
        step = step_seconds(operations, timer, self.running)
        if step.sources.get("replayed", 0.0) < MOSTLY * sum(step.sources.values()):
            return None
        # The host of an eager step was measured as a whole.
        host = calibration.replayed_hosts.get(model.digest, {}).get(self.precision)
        if host is None or self.running != "eager" or not step.host:
            return step
        return step_seconds(operations, timer, self.running, host / step.host)

    @property
    def _where(self) -> str:
        return "on such a machine" if self.hardware.measured_elsewhere else "here"

    def measured_steps(self, digest: str) -> StepCurve | None:
        """The curve of this model's measured steps, if there is one."""
        return self._curves.get(digest)

    @cached_property
    def _curves(self) -> dict[str, StepCurve]:
        wanted, curves = (self.framework, self.precision), self.hardware.calibrated.steps
        return {curve.digest: curve for curve in curves if (curve.framework, curve.precision) == wanted}

    def _by_operations(self, model: ModelFacts, samples: float, traced_model: TracedModel | None) -> Passes:
        """Seconds of each layer: the larger of device and host time; the loss counts with the last layer."""
        timer = self.timer or OperationTimer(self.hardware)
        operations = model_operations(model, samples, self.numbers, self.optimizer)
        step = step_seconds(operations, timer, self.running)
        replayed = self.replayed_step(samples)
        traced = traced_model.at(samples, self.numbers, self.optimizer) if traced_model and not replayed else None
        if traced is not None:
            replayed = step_seconds(traced, timer, self.running)
        if replayed is not None:
            step = like_layers(replayed, step)
        if self.casts:
            asking = unit_operations(casts=True, gathers=True) * host_seconds(timer, self.running)
            step = step.with_units(asking, [layer.name for layer in model.layers])
        host_bound = step.host_bound
        stretched = step.total / (step.host if host_bound else step.device)
        forward, backward = (
            _joined(part.host if host_bound else part.device for part in parts)
            for parts in (step.forward, step.backward)
        )
        host_forward, host_backward = (_joined(part.host for part in parts) for parts in (step.forward, step.backward))
        return Passes(
            tuple(seconds * stretched for seconds in forward), tuple(seconds * stretched for seconds in backward),
            overhead=self._overhead(step, host_bound),
            update_per_parameter=step.update.device / model.parameters if model.parameters else 0.0,
            deviation=step.deviation, source=self.source_text(step.sources, host_bound),
            least=max(sum(host_forward) + sum(host_backward), step.least),
            host_forward=host_forward, host_backward=host_backward,
        )  # fmt: skip

    def _overhead(self, step: StepSeconds, host_bound: bool) -> float:
        """Seconds of a step beside its passes and its update; on GPUs hidden where the device takes longer."""
        if self.hardware.kind == "cpu":
            return step.beside
        # An update that the host is slower to ask for than the device to make is beside the passes.
        return max(0.0, step.beside + step.update.host - step.update.device) if host_bound else 0.0

    @property
    def running(self) -> Execution:
        """The execution of the steps; frameworks other than PyTorch always compile."""
        return self.execution if self.framework == "torch" else "compiled"

    @property
    def numbers(self) -> Precision:
        """The precision for which operations are looked up, with casts taken into account."""
        return "bf16-pure" if self.casts else self.precision

    def all_cores_factor(self, model: ModelFacts) -> float:
        """How much longer the model's operations take when every core computes, by their kinds."""
        factors = self.hardware.calibrated.operation_crowding.get(str(self.hardware.node_devices), {})
        total = crowded = 0.0
        timer = self.timer or OperationTimer(self.hardware)
        for layer in model_operations(model, USUAL_SAMPLES, self.numbers, self.optimizer).layers:
            for operation in (*layer.forward, *layer.backward):
                seconds = timer.timed(operation).seconds * operation.count
                total, crowded = total + seconds, crowded + seconds * factors.get(operation.kind, 1.0)
        return crowded / total if total else 1.0


def _joined(seconds: Iterable[float]) -> tuple[float, ...]:
    """Seconds by layer, those of the loss added to the last layer."""
    *layers, last, loss = seconds
    return (*layers, last + loss)
