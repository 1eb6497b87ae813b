"""The most that a step holds at one time: a backward pass frees what it has used while it fills gradients.

On GPUs, steps of PyTorch are traced. Elsewhere bytes are counted layer by layer; what libraries take beside them for a
moment is measured of single layers, by kind, and what allocators keep beyond is measured of whole runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, RankFootprint
from paceline.costs.precision import compute_width
from paceline.predict.estimate import Estimate
from paceline.predict.simulate import combined
from paceline.predict.traced_memory import TracedPeaks
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategy
from paceline.systems.hardware import Curve, Hardware, LayerScratch, MemoryFit, StrategyOverhead

# Relative deviation of a counted peak beside what is known of a fit: allocators round up and fragment.
COUNTED_DEVIATION = 0.06
# The same on GPUs, where libraries choose workspaces and compilers what is kept: an H200's peak of JAX was 0.9 to 2.4
# times what is counted for the small and the large CNN.
COUNTED_ON_GPU_DEVIATION = 0.35
# What must be free beside a traced peak: so much of it, because pieces of free memory may be too small to be used.
TRACED_MARGIN = 0.02

# What a loss holds beside the results of the last layer: as many numbers as probabilities, and as a gradient.
LOSS_ARRAYS = 2


def beyond_kept(
    model: ModelFacts, samples: float, scratch: Mapping[str, LayerScratch], width: int = FLOAT_BYTES
) -> float:
    """Bytes of the peak of both passes minus all gradients and kept activations; may be negative."""
    return peak_of_passes(model, samples, scratch, width) - all_kept(model, samples, width)


def all_kept(model: ModelFacts, samples: float, width: int = FLOAT_BYTES) -> float:
    """Bytes of every gradient and of everything that stays for the backward pass, in numbers of so many bytes."""
    return model.parameter_bytes + model.activation_bytes * samples * width / FLOAT_BYTES


def peak_of_passes(
    model: ModelFacts, samples: float, scratch: Mapping[str, LayerScratch], width: int = FLOAT_BYTES
) -> float:
    """Bytes beside parameters, optimizer state and data, at the worst moment of both passes."""
    batch_bytes = samples * width
    losses = LOSS_ARRAYS * model.layers[-1].output_elements * samples * FLOAT_BYTES
    peak = model.activation_bytes * samples * width / FLOAT_BYTES + losses
    kept_below, input_elements = model.input_elements * batch_bytes, model.input_elements
    gradients = model.parameter_bytes
    for layer in model.layers:
        # Its output was freed by the layer above; the gradient from there is there instead, and that of its input
        # where something below is trained.
        trained_below = gradients < model.parameter_bytes
        elements = max(0, layer.kept - layer.output_elements) + layer.output_elements
        elements += input_elements if trained_below else 0
        rates = scratch.get(layer.kind)
        scratch_bytes = 0.0
        if rates:
            scratch_bytes = rates.per_weight_byte * layer.parameters * FLOAT_BYTES
            scratch_bytes += rates.per_activation_byte * (input_elements + layer.kept) * batch_bytes
        # Gradients are there from the last layer down to this one; below the first that is trained no pass goes.
        if trained_below or layer.parameters:
            peak = max(peak, kept_below + elements * batch_bytes + gradients + scratch_bytes)
        kept_below += layer.kept * batch_bytes
        gradients -= layer.parameters * FLOAT_BYTES
        input_elements = layer.output_elements
    return peak


def kept_by_allocator(points: Curve, samples: float) -> float:
    """Bytes that the allocator keeps at a local batch; beyond the largest measured batch the fitted line continues."""
    if samples <= max(points.sizes):
        return points.at(samples)
    return max(points.values[-1], points.fixed + points.slope * samples)


@dataclass(frozen=True)
class MemoryNeed:
    """What a worker needs at its peak, and how that was found out."""

    peak_bytes: Estimate
    # "traced" or "counted", and why it was not traced where it might have been.
    method: str = "counted"
    reason: str | None = None
    # What must be free beside the peak: a share of it, and what drivers and libraries hold.
    margin: float = 0.0
    reserved_bytes: float = 0.0

    def most_that_fits(self, limit_bytes: float) -> float:
        """The highest peak that a worker with so much memory can have."""
        return (limit_bytes - self.reserved_bytes) / (1 + self.margin)

    def fits(self, limit_bytes: float) -> bool:
        """Whether a worker with so much memory can hold it."""
        return self.peak_bytes.value <= self.most_that_fits(limit_bytes)


@dataclass(frozen=True)
class MemoryPredictor:
    """Predicts peaks of runs of one model on one system."""

    hardware: Hardware
    model: ModelFacts
    digest: str
    # Of the samples, as a process on cores holds them.
    data_bytes: float
    overhead_of: Callable[[Strategy], StrategyOverhead | None]
    _passed: dict[tuple[str, float, int], float] = field(default_factory=dict)

    @cached_property
    def limit_bytes(self) -> float:
        """Bytes that a worker has; on a CPU the workers of a machine share its memory evenly."""
        shared = self.hardware.node_devices if self.hardware.kind == "cpu" else 1
        return self.hardware.device.memory_bytes.value / shared

    @cached_property
    def _traced(self) -> TracedPeaks:
        return TracedPeaks(self.hardware, self.model)

    def need(self, spec: RunSpec, footprint: Footprint, samples: float) -> MemoryNeed:
        """What the rank that holds most needs with `samples` in a pass: traced if possible, else counted."""
        chosen = strategy(spec.strategy)
        # On cores it is part of what a process holds.
        reserved = self.hardware.device.reserved_bytes.value if self.hardware.kind == "cuda" else 0.0
        peak = self._traced.peak(spec, chosen, footprint, samples)
        if isinstance(peak, Estimate):
            # What may be needed beyond, must fit.
            margin = max(TRACED_MARGIN, peak.high / peak.value - 1)
            return MemoryNeed(peak, "traced", margin=margin, reserved_bytes=reserved)
        fit = self._fits.get(chosen.framework or "torch")
        deviation = combined(COUNTED_DEVIATION, fit.residual) if fit else 2 * COUNTED_DEVIATION
        if self.hardware.kind == "cuda":
            deviation = COUNTED_ON_GPU_DEVIATION
        most = max(self._held(group, fit, chosen, spec, samples) for group in footprint.groups)
        return MemoryNeed(Estimate.around(most, deviation), reason=peak, reserved_bytes=reserved)

    def _held(
        self, group: RankFootprint, fit: MemoryFit | None, chosen: Strategy, spec: RunSpec, samples: float
    ) -> float:
        # A server or a chief has no samples and makes no passes.
        computes = group.role == "worker"
        held, width = group.held_bytes, compute_width(spec)
        passing = self._passing(chosen.framework or "torch", samples, width) if computes else 0.0
        whole = self.model.activation_bytes * samples * width / FLOAT_BYTES
        splits_layers = chosen.traits.splits_layers(spec)
        if splits_layers:
            passing *= group.activation_bytes / (whole or 1.0)
        if fit is None:
            beside = self.hardware.device.reserved_bytes.value
            if self.hardware.kind == "cuda":
                beside = self.data_bytes if computes else 0.0
            return held + max(0.0, passing) + beside
        if computes and fit.points is not None and fit.digest == self.digest and not splits_layers:
            slack = kept_by_allocator(fit.points, samples)
        else:
            # Results of layers that are split are put together for a moment.
            kept = whole if splits_layers else group.activation_bytes
            slack = fit.base_bytes + fit.slack * (group.gradient_bytes + kept + passing)
        beyond, overhead = passing, self.overhead_of(chosen)
        if overhead and spec.workers > 1:
            beyond = self._buffered(group, passing, overhead)
        return held + beyond + slack + (self.data_bytes if computes else 0.0)

    def _buffered(self, group: RankFootprint, passing: float, overhead: StrategyOverhead) -> float:
        """Temporary bytes of passes and of the strategy's buffers: measured with this model, or scaled by its size."""
        buffers = overhead.held_per_parameter_byte * self.model.parameter_bytes
        grown = overhead.held_per_activation_byte.get(self.digest)
        if grown is not None:
            return overhead.held_bytes + passing + buffers + grown * group.activation_bytes
        # What is filled while activations are freed takes their place.
        sent_back = all(message.phase == "backward" for message in group.messages)
        if group.role == "worker" and sent_back:
            return overhead.held_bytes + max(passing, buffers - group.activation_bytes)
        return overhead.held_bytes + passing + buffers

    @cached_property
    def _fits(self) -> dict[str, MemoryFit]:
        return {fit.framework: fit for fit in self.hardware.calibrated.memory}

    def _passing(self, framework: str, samples: float, width: int) -> float:
        """Bytes of a local batch's passes at their peak, beyond all gradients and kept activations."""
        if (framework, samples, width) not in self._passed:
            fit = self._fits.get(framework)
            scratch = {rates.kind: rates for rates in fit.scratch} if fit else {}
            self._passed[framework, samples, width] = beyond_kept(self.model, samples, scratch, width)
        return self._passed[framework, samples, width]
