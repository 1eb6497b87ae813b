"""Steps of a user's model at any batch, from traces of it at two: what grows with the samples grows evenly."""

from dataclasses import dataclass, field, replace

from paceline.costs.operations import LayerOperations, Operation, StepOperations
from paceline.runs.trace import can_trace, one_step, traced_all
from paceline.spec import Optimizer, Precision, RunSpec
from paceline.systems.gpu_memory import GpuMemory

# Samples of the two traces: more than one, because norms over a batch need them.
FEW, MORE = 2, 4
Pair = tuple[StepOperations, StepOperations]


@dataclass(frozen=True)
class TracedModel:
    """A model whose steps are traced when they are first asked for, once for each precision and optimizer."""

    base: RunSpec
    _pairs: dict[tuple[Precision, str], Pair | None] = field(default_factory=dict)
    _steps: dict[tuple[int, Precision, str], StepOperations | None] = field(default_factory=dict)

    def at(self, samples: float, precision: Precision, optimizer: Optimizer) -> StepOperations | None:
        """The operations of a step with so many samples; None where the model cannot be traced."""
        key = precision, optimizer.model_dump_json()
        if key not in self._pairs:
            self._pairs[key] = self._trace(precision, optimizer)
        pair = self._pairs[key]
        return between(*pair, samples) if pair else None

    def exactly(self, samples: int, precision: Precision, optimizer: Optimizer) -> StepOperations | None:
        """The operations of a step with so many samples, with their calls; None where the model cannot be traced."""
        key = samples, precision, optimizer.model_dump_json()
        if key not in self._steps:
            spec = self.base.model_copy(update={"precision": precision, "optimizer": optimizer})
            (trace,) = traced_all([one_step(spec, samples)], self._device, keeps_calls=True) if can_trace() else ("",)
            self._steps[key] = None if isinstance(trace, str) else trace.operations
        return self._steps[key]

    @property
    def _device(self) -> GpuMemory:
        """A GPU, or cores as far as their calls are others."""
        return GpuMemory(fuses_recurrent=self.base.device != "cpu")

    def _trace(self, precision: Precision, optimizer: Optimizer) -> Pair | None:
        if not can_trace():
            return None
        spec = self.base.model_copy(update={"precision": precision, "optimizer": optimizer})
        few, more = traced_all([one_step(spec, FEW), one_step(spec, MORE)], self._device)
        if isinstance(few, str) or isinstance(more, str):
            return None
        return (few.operations, more.operations) if alike(few.operations, more.operations) else None


def alike(few: StepOperations, more: StepOperations) -> bool:
    """Whether two steps have the same operations, apart from their sizes."""

    def names(step: StepOperations) -> list[tuple[object, ...]]:
        return [(each.kind, each.numbers, each.name, len(each.shape), each.backward) for each in _operations(step)]

    return names(few) == names(more)


def between(few: StepOperations, more: StepOperations, samples: float) -> StepOperations:
    """The step with so many samples: every size interpolated (or extrapolated) between two traced steps."""
    layers = tuple(
        LayerOperations(
            layer.layer,
            _between(layer.forward, same_layer.forward, samples),
            _between(layer.backward, same_layer.backward, samples),
        )
        for layer, same_layer in zip(few.layers, more.layers, strict=True)
    )
    return StepOperations(layers, few.update)


def _between(few: tuple[Operation, ...], more: tuple[Operation, ...], samples: float) -> tuple[Operation, ...]:
    return tuple(_at(*pair, samples) for pair in zip(few, more, strict=True))


def _at(few: Operation, more: Operation, samples: float) -> Operation:
    def line(low: float, high: float) -> float:
        return low + (high - low) * (samples - FEW) / (MORE - FEW)

    shape = tuple(max(1, round(line(low, high))) for low, high in zip(few.shape, more.shape, strict=True))
    moved = max(0.0, line(few.moved_bytes, more.moved_bytes))
    return replace(few, shape=shape, flops=max(0.0, line(few.flops, more.flops)), moved_bytes=moved)


def _operations(step: StepOperations) -> list[Operation]:
    return [operation for layer in step.layers for operation in (*layer.forward, *layer.backward)] + [*step.update]
