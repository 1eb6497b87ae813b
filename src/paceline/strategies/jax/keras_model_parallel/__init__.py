"""Keras 3 ModelParallel on JAX: variables divided over one side of a mesh by a layout map, batches over the other.

`keras.distribution.ModelParallel`, the ModelParallelStrategy of Bhilegaonkar, Hoskote and Nale; on other backends than
JAX Keras accepts a distribution and does nothing.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from paceline.contract.context import Context, Process, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Role, Strategy, on_cores, on_one_worker
from paceline.costs import jax as costs
from paceline.costs.footprint import FLOAT_BYTES, Footprint, Message, ModelFacts, all_gather, all_reduce, exchange
from paceline.costs.splits import Rows, tensor_footprint, why_not_split
from paceline.frameworks.jax import declared
from paceline.spec import RunSpec
from paceline.systems import System
from paceline.workloads.layers import QUERY_KEY_VALUE

SUMS_OF_SOFTMAX = 4

KNOBS = (
    Knob(
        "tensor", 2, "workers along the model side of the mesh, which split layers; the rest are along the batch side"
    ),
    Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
    declared.STEPS_PER_EXECUTION,
)


def rows_of(spec: RunSpec) -> Rows:
    """The mesh: its model side, its batch side."""
    return Rows.of(spec, STRATEGY.knob_values(spec))


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every split layer, activations exchanged in the row, gradients averaged between rows."""
    rows, scatter = rows_of(spec), partial(costs.scattered_reduction, spec)
    (worker,) = costs.with_one_counter(tensor_footprint(spec, rows, model, scatter), spec).groups
    return Footprint((replace(worker, messages=_as_laid_out(worker.messages, spec, rows, model)),))


def _as_laid_out(messages: Iterable[Message], spec: RunSpec, rows: Rows, model: ModelFacts) -> tuple[Message, ...]:
    """What a layout map adds: it divides whole dimensions of variables only, not heads or channels inside of one."""
    splits, ways, samples = rows.split(model), rows.ways, spec.samples_per_step // rows.count
    joined = {f"output of {split.layer.name}" for split in splits if split.gathers_output}
    found = [message for message in messages if message.name not in joined]
    channels = 0
    for split in splits:
        name, shapes = split.layer.name, dict(split.layer.arrays)
        if split.part == "heads":
            payload = QUERY_KEY_VALUE * split.layer.output_elements * samples * FLOAT_BYTES
            found += _both_ways(all_gather(f"queries, keys and values of {name}", payload, ways))
        if split.part == "rows" and channels:
            # Divided by channels before, by rows of pixels after; where those do not divide, everything is gathered.
            payload, name = split.input_elements * samples * FLOAT_BYTES, f"input of {name}"
            moved = payload / ways * (ways - 1) / ways
            divides = split.input_elements // channels % ways == 0
            found += _both_ways((exchange(name, moved, moved),) if divides else all_gather(name, payload, ways))
        if split.gathers_output:
            # Softmax of divided outputs: the largest, the sum, and two more numbers for each position.
            positions = split.layer.output_elements // shapes["kernel"][-1]
            sums = all_reduce("softmax", positions * samples * FLOAT_BYTES, ways)
            found += [replace(message, count=SUMS_OF_SOFTMAX) for message in sums]
        if shapes:
            channels = shapes["kernel"][-1] if split.part == "channels" else 0
    return tuple(found)


def _both_ways(messages: Iterable[Message]) -> list[Message]:
    return [replace(message, count=2) for message in messages]


def check(spec: RunSpec, _system: System) -> str | None:
    """The workers must fill the mesh, and the model must divide."""
    knobs = STRATEGY.knob_values(spec)
    # One worker is a mesh of one.
    if spec.workers == 1:
        knobs["tensor"] = 1
    return declared.check_fields(spec) or why_not_split(spec, knobs, spec_facts)


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Keras on JAX, and its devices."""
    return {**declared.environment(spec, process), "KERAS_BACKEND": "jax"}


def open_job(context: Context) -> Job:
    """Keras builds and places the model; the step is that of the other JAX strategies."""
    from paceline.strategies.jax.keras_model_parallel.job import open_parallel

    knobs = STRATEGY.knob_values(context.spec)
    return open_parallel(context, rows_of(context.spec), int(knobs["steps_per_execution"]))


STRATEGY = Strategy(
    name="keras-model-parallel",
    family="hybrid",
    framework="jax",
    synchronous=True,
    about="Keras divides variables over a mesh of devices by a layout map, and batches over its other side",
    use_when="a Keras model is too large for one device and is to stay a Keras model",
    footprint=footprint,
    check=check,
    open_job=open_job,
    devices=("cpu", "cuda"),
    knobs=KNOBS,
    precisions=declared.PRECISIONS,
    executions=declared.EXECUTIONS,
    needs=("keras",),
    own_models="keras",
    environment=environment,
    roles=lambda spec: (Role("worker", 1, workers_each=spec.workers),),
    replicas=lambda spec: rows_of(spec).count,
    reference=on_one_worker("jax-single"),
    # What XLA's profiler tells of GPUs has not been tried.
    can_be_instrumented=on_cores,
    is_out_of_memory=declared.is_out_of_memory,
)
