"""Peaks of runs on GPUs from traced steps of their model, of which a few stand for all batches and layouts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.contract.trace import Trace
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.step_memory import StepMemory
from paceline.predict.estimate import Estimate
from paceline.predict.simulate import combined
from paceline.runs.trace import can_trace, one_step, traced_all
from paceline.spec import RunSpec
from paceline.strategies import Strategy
from paceline.systems.hardware import Hardware

# Bytes are on a line over the samples of a pass: of 65 steps of five models in between and up to four times beyond,
# none was off by more than 0.7 %.
TRACED_SAMPLES = (2, 32)
# Relative deviation of a traced peak, from the runs of `benchmarks/gpu_memory.py`.
DEVIATION = 0.01
# The same where workers share the model's layers in ways that were not traced, and where a compiler rearranges them.
SHARED_DEVIATION, COMPILED_DEVIATION = 0.04, 0.05
# cuDNN's convolutions in single precision, without TF32, take up to as much again as all tensors for themselves.
SINGLE_CONVOLUTION_DEVIATION = 0.25


@dataclass(frozen=True)
class TracedPeaks:
    """Traced steps of one model on one system."""

    hardware: Hardware
    model: ModelFacts
    _steps: dict[tuple[str, ...], Sequence[Trace | str]] = field(default_factory=dict)

    def peak(self, spec: RunSpec, chosen: Strategy, footprint: Footprint, samples: float) -> Estimate | str | None:
        """Bytes of the rank that holds most; why they are not known of a run that is traced as a rule, or None."""
        if self.hardware.kind != "cuda" or chosen.framework != "torch":
            return None
        if not can_trace():
            return "PyTorch is not installed here"
        peaks = chosen.traits.peaks
        traces = self._traces(spec, peaks.casts)
        if isinstance(traces, str):
            return traces
        first, second = (trace.memory for trace in traces)
        if len(first.layers) != len(self.model.layers) + 1:
            return "its layers are not those that were counted"
        step = first.towards(second, peaks.samples(spec) if peaks.samples else samples)
        step = _with_graph(spec, step.evaluated_by(chosen.traits.replicas(spec)))
        held = max(peaks.of(spec, self.model, footprint, step))
        return Estimate.around(held, self._deviation(spec, chosen, traces[0]))

    def _traces(self, spec: RunSpec, casts: bool) -> Sequence[Trace] | str:
        """Two steps that differ in their samples alone."""
        if casts and spec.precision in ("bf16", "fp16"):
            # FSDP casts parameters and inputs, as precision bf16-pure holds them.
            spec = spec.model_copy(update={"precision": "bf16-pure"})
        key = spec.precision, spec.recompute, spec.memory_format
        if key not in self._steps:
            steps = [one_step(spec, samples) for samples in TRACED_SAMPLES]
            self._steps[key] = traced_all(steps, self.hardware.device.memory_behaviour)
        traces = self._steps[key]
        reason = next((trace for trace in traces if isinstance(trace, str)), None)
        return reason or [trace for trace in traces if isinstance(trace, Trace)]

    def _deviation(self, spec: RunSpec, chosen: Strategy, trace: Trace) -> float:
        deviation = DEVIATION
        if chosen.traits.splits_layers(spec):
            deviation = combined(deviation, SHARED_DEVIATION)
        if spec.execution != "eager":
            deviation = combined(deviation, COMPILED_DEVIATION)
        if any(
            operation.kind == "convolution" and operation.numbers == "fp32"
            for layer in trace.operations.layers
            for operation in layer.forward
        ):
            deviation = combined(deviation, SINGLE_CONVOLUTION_DEVIATION)
        return deviation


def _with_graph(spec: RunSpec, step: StepMemory) -> StepMemory:
    """A graph is recorded with workspaces of its own."""
    return replace(step, workspace_bytes=2 * step.workspace_bytes) if "graph" in spec.execution else step
