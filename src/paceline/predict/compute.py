"""Seconds that a device computes for each layer of a model: from measured steps, from layers, or from operations.

Cores are known by their layers, GPUs by their operations.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from paceline.costs.footprint import BACKWARD_OVER_FORWARD, ModelFacts
from paceline.costs.layer_operations import model_operations
from paceline.costs.layers import LayerFacts
from paceline.predict.operations import OperationTimer, Source, peak_of
from paceline.predict.steps import host_seconds, like_layers, step_seconds, unit_operations
from paceline.runs.traced_model import TracedModel
from paceline.spec import Execution, Optimizer, Precision
from paceline.systems.hardware import Hardware, LayerRate, StepCurve

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "bf16-pure": 2}
DIGEST_LENGTH = 12
# Where seconds come from that nobody measured.
DATA_SHEET = "the data sheet"
USUAL_OPTIMIZER = Optimizer()
# Arrays that one operation of a framework has as a rule: a kernel and a bias.
ARRAYS_PER_OPERATION = 2
# Adam reads the gradient and its two states and the parameter, and writes all but the gradient.
UPDATE_BYTES_PER_PARAMETER = 28


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


def touched_elements(layer: LayerFacts, before: int) -> int:
    """Numbers that a forward pass of one sample reads and writes."""
    return before + layer.kept


def passes_back(model: ModelFacts) -> list[int]:
    """How many gradient computations each layer needs in the backward pass: for its weights, and for its input.

    Before the first parameters nothing goes back, and there the gradient of the input is not wanted.
    """
    passes, trained_below = [], False
    for layer in model.layers:
        passes.append((layer.parameters > 0) + trained_below)
        trained_below = trained_below or layer.parameters > 0
    return passes


def takes_time(layer: LayerFacts) -> bool:
    """Whether the layer computes anything, rather than only changing a shape."""
    return bool(layer.forward_flops or layer.parameters)


def pass_seconds(rate: LayerRate, layer: LayerFacts, elements: int, samples: float) -> float:
    """One pass of a layer; a backward pass is one for the gradient of its weights and one for that of its input."""
    fixed = rate.fixed + rate.per_parameter * layer.parameters
    return fixed + samples * (rate.per_flop * layer.forward_flops + rate.per_element * elements)


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

    def passes(self, model: ModelFacts, samples: float, digest: str | None = None) -> Passes:
        """Seconds of a local batch: as measured where this model was, else put together from its layers."""
        by_layer = (
            self._by_layers(model, samples) if self.hardware.kind == "cpu" else self._by_operations(model, samples)
        )
        curve = self.measured_steps(digest if digest is not None else model_digest(model))
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
        text = names[max(sources, key=lambda source: sources[source], default="data sheet")]
        return f"{text}; the host takes longer to launch kernels than the GPU to run them" if host_bound else text

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

    @cached_property
    def _rates(self) -> dict[str, LayerRate]:
        known = self.hardware.calibrated.layers if self.precision == "fp32" else ()
        of_framework = {rate.kind: rate for rate in known if rate.framework == self.framework}
        # Layers are timed in PyTorch; those of other frameworks are taken to be as fast, for want of better.
        return of_framework or {rate.kind: rate for rate in known}

    def _by_operations(self, model: ModelFacts, samples: float) -> Passes:
        """Seconds of each layer: the larger of device and host time; the loss counts with the last layer."""
        timer = self.timer or OperationTimer(self.hardware)
        operations = model_operations(model, samples, self.numbers, self.optimizer)
        step = step_seconds(operations, timer, self.running)
        traced = self.traced.at(samples, self.numbers, self.optimizer) if self.traced else None
        if traced is not None:
            step = like_layers(step_seconds(traced, timer, self.running), step)
        if self.casts:
            step = step.with_units(unit_operations(casts=True, gathers=True) * host_seconds(timer, self.running))
        host_bound = step.host_bound
        stretched = step.total / (step.host if host_bound else step.device)
        forward, backward = (
            _joined(part.host if host_bound else part.device for part in parts)
            for parts in (step.forward, step.backward)
        )
        host_forward, host_backward = (_joined(part.host for part in parts) for parts in (step.forward, step.backward))
        return Passes(
            tuple(seconds * stretched for seconds in forward), tuple(seconds * stretched for seconds in backward),
            # An update that the host is slower to ask for than the device to make is beside the passes.
            overhead=max(0.0, step.beside + step.update.host - step.update.device) if host_bound else 0.0,
            update_per_parameter=step.update.device / model.parameters if model.parameters else 0.0,
            deviation=step.deviation, source=self.source_text(step.sources, host_bound),
            least=max(sum(host_forward) + sum(host_backward), step.least),
            host_forward=host_forward, host_backward=host_backward,
        )  # fmt: skip

    @property
    def running(self) -> Execution:
        """The execution of the steps; frameworks other than PyTorch always compile."""
        return self.execution if self.framework == "torch" else "compiled"

    @property
    def numbers(self) -> Precision:
        """The precision for which operations are looked up, with casts taken into account."""
        return "bf16-pure" if self.casts else self.precision

    def _by_layers(self, model: ModelFacts, samples: float) -> Passes:
        calibration, rates = self.hardware.calibrated, self._rates
        seconds = self._measured_layer if rates else self._described_layer
        elements, parts, least = model.input_elements, [], 0.0
        for layer, back in zip(model.layers, passes_back(model), strict=True):
            parts.append(seconds(layer, back, touched_elements(layer, elements), samples))
            least += sum(seconds(replace(layer, parameters=min(1, layer.parameters)), back, 0, 0.0))
            elements = layer.output_elements
        update = UPDATE_BYTES_PER_PARAMETER / self.hardware.device.memory_bytes_per_second.value
        update = calibration.optimizer_seconds_per_parameter.get(self.framework, update)
        overhead = calibration.step_overhead_seconds.get(self.framework, 0.0)
        return Passes(
            tuple(part[0] for part in parts), tuple(part[1] for part in parts), overhead, update,
            self._deviation(rates, model), f"layers, measured {self._where}" if rates else DATA_SHEET, least,
        )  # fmt: skip

    def _deviation(self, rates: dict[str, LayerRate], model: ModelFacts) -> float:
        if not rates:
            return self.hardware.uncertainty.value
        weights = dict.fromkeys(rates, 0.0)
        for layer in model.layers:
            if layer.kind in weights:
                weights[layer.kind] += layer.forward_flops
        total = sum(weights.values()) or 1.0
        return sum(rates[kind].residual * weight for kind, weight in weights.items()) / total

    def _measured_layer(self, layer: LayerFacts, back: int, elements: int, samples: float) -> tuple[float, float]:
        if not takes_time(layer):
            return 0.0, 0.0
        rate = self._rates.get(layer.kind) or self._rates["dense"]
        seconds = pass_seconds(rate, layer, elements, samples)
        return seconds, back * seconds

    def _described_layer(self, layer: LayerFacts, back: int, elements: int, samples: float) -> tuple[float, float]:
        """The slower of computing and of moving numbers, and no less than launching the kernels takes."""
        device = self.hardware.device
        rate = peak_of(device, self.precision) * device.efficiency.value
        moved = samples * elements * BYTES[self.precision] / device.memory_bytes_per_second.value
        operations = max(1, layer.tensors // ARRAYS_PER_OPERATION) if layer.forward_flops else 0
        asking = device.launch_seconds.value * operations
        computed = samples * layer.forward_flops / rate
        forward = max(computed, moved, asking / (1 + BACKWARD_OVER_FORWARD))
        backward = max(back * computed, 2 * moved, asking * 2 / (1 + BACKWARD_OVER_FORWARD))
        return forward, backward if back and takes_time(layer) else 0.0


def _joined(seconds: Iterable[float]) -> tuple[float, ...]:
    """Seconds by layer, those of the loss added to the last layer."""
    *layers, last, loss = seconds
    return (*layers, last + loss)
