"""What a look at one whole training step of a model found: what a device is asked to do, and what it holds."""

from dataclasses import dataclass

from paceline.costs.operations import StepOperations
from paceline.costs.step_memory import StepMemory


@dataclass(frozen=True)
class Trace:
    """One step of one worker, as PyTorch makes it on a GPU."""

    operations: StepOperations
    memory: StepMemory
