"""The trace of one training step: the operations that a device executes, and the bytes that it holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.costs.operations import Operation, StepOperations
from paceline.costs.step_memory import StepMemory


@dataclass(frozen=True)
class Trace:
    """One step of one worker, as PyTorch makes it on a GPU; layers in the order of the forward pass, the loss last."""

    operations: StepOperations
    memory: StepMemory

    def repeated(self, layers: Sequence[tuple[str, int]]) -> "Trace":
        """The trace of a deeper model: for each of its layers a name, and the index of an equal layer in this trace."""
        names = [*layers, (self.memory.layers[-1].layer, len(self.memory.layers) - 1)]
        layer_memory = tuple(replace(self.memory.layers[place], layer=name) for name, place in names)
        deeper = replace(self.memory, layers=layer_memory)
        growth = deeper.parameter_bytes / (self.memory.parameter_bytes or 1.0)
        grown = {name: getattr(self.memory, name) * growth for name in ("state_bytes", "update_bytes")}
        layer_operations = tuple(replace(self.operations.layers[place], layer=name) for name, place in names)
        update = tuple(_grown(operation, growth) for operation in self.operations.update)
        return Trace(StepOperations(layer_operations, update), replace(deeper, **grown))


def _grown(operation: Operation, growth: float) -> Operation:
    """The update of more parameters; its work per parameter stays the same."""
    return replace(
        operation,
        shape=tuple(round(size * growth) for size in operation.shape),
        flops=operation.flops * growth,
        moved_bytes=operation.moved_bytes * growth,
    )
