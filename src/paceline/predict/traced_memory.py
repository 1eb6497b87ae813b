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

# Bytes are on a line over the samples of a pass, but for scratch memory that stops growing: of 65 steps of five models
# on 1 to 128 samples, none was off the line through the first two by more than 0.6 %. Beyond, others are traced.
FEW_SAMPLES, MANY_SAMPLES = (2, 32), (128, 512)
MOST_FROM_FEW = 64
# Relative deviation of a traced peak, from the runs of `benchmarks/gpu_memory.py`.
DEVIATION = 0.01
# The same where workers share the model's layers in ways that were not traced, where a compiler rearranges them, and
# where its result is recorded as a graph.
SHARED_DEVIATION, COMPILED_DEVIATION, COMPILED_GRAPH_DEVIATION = 0.02, 0.05, 0.07
# cuDNN's convolutions in single precision, without TF32, may take as much again as all tensors for themselves: of 60
# recorded runs of the large CNN the highest was 2.18 times the traced peak, and the
# lowest 0.72 times.
SINGLE_CONVOLUTION_REACH = 0.8, 2.2


@dataclass(frozen=True)
class TracedPeaks:
    """Traced steps of one model on one system."""

    hardware: Hardware
    model: ModelFacts
    _steps: dict[tuple[object, ...], Sequence[Trace | str]] = field(default_factory=dict)
    _single_convolutions: dict[int, bool] = field(default_factory=dict)
    _between: dict[tuple[int, int, float], StepMemory] = field(default_factory=dict)

    def peak(self, spec: RunSpec, chosen: Strategy, footprint: Footprint, samples: float) -> Estimate | str | None:
        """Peak bytes of the rank that holds most, a reason why it cannot be traced, or None where it never is."""
        if self.hardware.kind != "cuda" or chosen.framework != "torch":
            return None
        if not can_trace():
            return "PyTorch is not installed here"
        peaks = chosen.traits.peaks
        samples = peaks.samples(spec) if peaks.samples else samples
        traces = self._traces(spec, peaks.casts, samples)
        if isinstance(traces, str):
            return traces
        first, second = (trace.memory for trace in traces)
        if len(first.layers) != len(self.model.layers) + 1:
            return "its layers are not those that were counted"
        step = self._step_between(first, second, samples)
        step = _with_graph(spec, step.evaluated_by(chosen.traits.replicas(spec)))
        held = max(peaks.of(spec, self.model, footprint, step))
        estimate = Estimate.around(held, _deviation(spec, chosen))
        if self._may_take_twice(traces[0]):
            low, high = SINGLE_CONVOLUTION_REACH
            return Estimate(held, held * low, held * high)
        return estimate

    def _step_between(self, first: StepMemory, second: StepMemory, samples: float) -> StepMemory:
        """The step of so many samples, on the line through both; layouts with like micro-batches share one."""
        # By places in memory, which stay theirs: traces are kept.
        key = id(first), id(second), samples
        if key not in self._between:
            self._between[key] = first.towards(second, samples)
        return self._between[key]

    def _may_take_twice(self, trace: Trace) -> bool:
        """Whether cuDNN's choices may double its peak; worked out once for each trace."""
        if id(trace) not in self._single_convolutions:
            self._single_convolutions[id(trace)] = _has_single_convolutions(trace)
        return self._single_convolutions[id(trace)]

    def _traces(self, spec: RunSpec, casts: bool, samples: float) -> Sequence[Trace] | str:
        """Traces of two steps that differ only in their number of samples."""
        if casts and spec.precision in ("bf16", "fp16"):
            # FSDP casts parameters and inputs, as precision bf16-pure holds them.
            spec = spec.model_copy(update={"precision": "bf16-pure"})
        ends = FEW_SAMPLES if samples <= MOST_FROM_FEW else MANY_SAMPLES
        key = spec.precision, spec.recompute, spec.memory_format, ends
        if key not in self._steps:
            steps = [one_step(spec, count) for count in ends]
            self._steps[key] = traced_all(steps, self.hardware.memory_behaviour)
        traces = self._steps[key]
        reason = next((trace for trace in traces if isinstance(trace, str)), None)
        return reason or [trace for trace in traces if isinstance(trace, Trace)]


def _deviation(spec: RunSpec, chosen: Strategy) -> float:
    shared = SHARED_DEVIATION if chosen.traits.splits_layers(spec) else 0.0
    by_execution = {"compiled": COMPILED_DEVIATION, "compiled+graph": COMPILED_GRAPH_DEVIATION}
    return combined(DEVIATION, shared, by_execution.get(spec.execution, 0.0))


def _has_single_convolutions(trace: Trace) -> bool:
    return any(
        operation.kind == "convolution" and operation.numbers == "fp32"
        for layer in trace.operations.layers
        for operation in layer.forward
    )


def _with_graph(spec: RunSpec, step: StepMemory) -> StepMemory:
    """The step's memory with the extra workspaces of a CUDA graph, where the run records one."""
    return replace(step, workspace_bytes=2 * step.workspace_bytes) if "graph" in spec.execution else step
