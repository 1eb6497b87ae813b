"""A model ─► its distinct operations, which a GPU can then be asked to do by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.costs.layer_operations import model_operations
from paceline.costs.operations import Operation, StepOperations
from paceline.predict.compute import model_digest
from paceline.predict.question import Question
from paceline.runs.trace import one_step, traced_all
from paceline.spec import BASELINE, Precision, RunSpec
from paceline.systems.gpu_memory import GpuMemory

# Usual local batches of a GPU, and the precisions that people train with there.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PRECISIONS: tuple[Precision, ...] = ("bf16", "tf32")
# Local batches whose very calls are repeated where none are asked for: each takes some seconds.
REPEATED_BATCHES = (8, 32)
# Samples of a step that the host decides: more than one, because norms over a batch need them. They come again in each
# of many steps.
FEW_SAMPLES, COPIES = 2, 200


@dataclass(frozen=True)
class Replay:
    """The operations of a model that are to be timed as they are, the most telling first."""

    operations: tuple[Operation, ...] = ()
    # Steps with few samples, one for each precision, for which the host takes longer than the device.
    host_steps: tuple[RunSpec, ...] = ()
    # Local batches whose steps were traced with their calls, by the model's digest.
    batches: dict[str, tuple[int, ...]] = field(default_factory=dict)


NO_REPLAY = Replay()


def replay_of(question: Question, batches: Sequence[int] | None = None) -> Replay:
    """The calls that steps of the question's model make, and then the operations of its layers, each kind once.

    The calls are those of traced steps; the layers' operations serve layouts that divide them.
    """
    repeated = tuple(batches or REPEATED_BATCHES)
    steps = _traced(question, repeated)
    by_layer = [
        model_operations(question.facts, batch, precision, question.base.optimizer)
        for batch in batches or BATCHES
        for precision in PRECISIONS
    ]
    traced = {model_digest(question.facts): repeated} if steps else {}
    host_steps = [host_step(question.base.model_copy(update={"precision": precision})) for precision in PRECISIONS]
    return Replay(tuple(distinct_operations([*steps, *by_layer])), tuple(host_steps), traced)


def host_step(spec: RunSpec) -> RunSpec:
    """An eager run of the same model on one GPU with so few samples that the host takes longer than the device."""
    fields = {"strategy": BASELINE, "device": "cuda", "execution": "eager", "global_batch": FEW_SAMPLES}
    repeated = {"train_samples": FEW_SAMPLES, "dataset_copies": COPIES, "epochs": 1, "steps": None}
    return spec.model_copy(update={**fields, **repeated})


def _traced(question: Question, batches: Sequence[int]) -> list[StepOperations]:
    """Steps with these batches, with their calls; none where the model cannot be traced."""
    specs = [
        one_step(question.base.model_copy(update={"precision": precision}), batch)
        for batch in batches
        for precision in PRECISIONS
    ]
    traces = traced_all(specs, GpuMemory(), keeps_calls=True)
    return [trace.operations for trace in traces if not isinstance(trace, str)]


def distinct_operations(steps: Sequence[StepOperations]) -> list[Operation]:
    """The operations of these steps without repetitions, and without what kernels of others do unseen."""
    distinct: dict[Operation, None] = {}
    for step in steps:
        for layer in step.layers:
            distinct |= dict.fromkeys(
                replace(operation, count=1, waits=False)
                for operation in (*layer.forward, *layer.backward)
                if not operation.inside_call
            )
        distinct |= dict.fromkeys(step.update)
    return list(distinct)
