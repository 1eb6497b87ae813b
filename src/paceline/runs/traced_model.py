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

    def at(self, samples: float, precision: Precision, optimizer: Optimizer) -> StepOperations | None:
        """A step of so many samples; None where it cannot be traced."""
        key = precision, optimizer.model_dump_json()
        if key not in self._pairs:
            self._pairs[key] = self._trace(precision, optimizer)
        pair = self._pairs[key]
        return between(*pair, samples) if pair else None

    def _trace(self, precision: Precision, optimizer: Optimizer) -> Pair | None:
        if not can_trace():
            return None
        spec = self.base.model_copy(update={"precision": precision, "optimizer": optimizer})
        few, more = traced_all([one_step(spec, FEW), one_step(spec, MORE)], GpuMemory())
        if isinstance(few, str) or isinstance(more, str):
            return None
        return (few.operations, more.operations) if alike(few.operations, more.operations) else None


def alike(few: StepOperations, more: StepOperations) -> bool:
    """Whether both ask for the same operations, of whatever sizes."""

    def names(step: StepOperations) -> list[tuple[object, ...]]:
        return [(one.kind, one.numbers, one.name, len(one.shape), one.backward) for one in _all(step)]

    return names(few) == names(more)


def between(few: StepOperations, more: StepOperations, samples: float) -> StepOperations:
    """The step of so many samples, each size on the line through those of both."""
    layers = tuple(
        LayerOperations(
            one.layer,
            _between(one.forward, other.forward, samples),
            _between(one.backward, other.backward, samples),
        )
        for one, other in zip(few.layers, more.layers, strict=True)
    )
    return StepOperations(layers, few.update)


def _between(few: tuple[Operation, ...], more: tuple[Operation, ...], samples: float) -> tuple[Operation, ...]:
    return tuple(_at(one, other, samples) for one, other in zip(few, more, strict=True))


def _at(few: Operation, more: Operation, samples: float) -> Operation:
    def line(low: float, high: float) -> float:
        return low + (high - low) * (samples - FEW) / (MORE - FEW)

    shape = tuple(max(1, round(line(low, high))) for low, high in zip(few.shape, more.shape, strict=True))
    moved = max(0.0, line(few.moved_bytes, more.moved_bytes))
    return replace(few, shape=shape, flops=max(0.0, line(few.flops, more.flops)), moved_bytes=moved)


def _all(step: StepOperations) -> list[Operation]:
    return [one for layer in step.layers for one in (*layer.forward, *layer.backward)] + [*step.update]
