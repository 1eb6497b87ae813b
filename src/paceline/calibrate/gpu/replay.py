"""A model ─► its distinct operations, which a GPU can then be asked to do by themselves."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import Operation, StepOperations
from paceline.predict.question import Question
from paceline.spec import Precision

# Usual local batches of a GPU, and the precisions that people train with there.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PRECISIONS: tuple[Precision, ...] = ("bf16", "tf32")


def replayed_operations(question: Question, batches: Sequence[int] | None = None) -> list[Operation]:
    """What steps of the question's model ask for, each kind once; smaller batches first."""
    steps = [
        model_operations(question.facts, batch, precision, question.base.optimizer)
        for batch in batches or BATCHES
        for precision in PRECISIONS
    ]
    return distinct_operations(steps)


def distinct_operations(steps: Sequence[StepOperations]) -> list[Operation]:
    """The operations of these steps without repetitions."""
    operations: dict[Operation, None] = {}
    for step in steps:
        for layer in step.layers:
            operations |= dict.fromkeys(
                replace(operation, count=1, waits=False) for operation in (*layer.forward, *layer.backward)
            )
        operations |= dict.fromkeys(step.update)
    return list(operations)
