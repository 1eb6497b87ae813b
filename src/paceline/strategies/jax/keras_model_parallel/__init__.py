"""Keras 3 ModelParallel on JAX: variables divided over one side of a mesh by a layout map, batches over the other.

The ModelParallelStrategy of Bhilegaonkar, Hoskote and Nale; with other backends than JAX, Keras does nothing for it.
"""

from collections.abc import Iterable
from dataclasses import replace

from paceline.contract.context import Context, Process, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing, on_cores, on_one_worker, one_process_for_all_workers
from paceline.contract.traits import Search, Traits, group_sizes_within_a_node
from paceline.costs import jax as costs
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, in_one_pass
from paceline.costs.messages import Message, all_gather, all_reduce, exchange
from paceline.costs.splits import Rows, tensor_footprint, tensor_messages, why_not_split
from paceline.frameworks.jax import declared
from paceline.spec import RunSpec
from paceline.systems import System
from paceline.workloads.layers import QUERY_KEY_VALUE

SUMS_OF_SOFTMAX = 4


def rows_of(spec: RunSpec) -> Rows:
    """The mesh: its model side, its batch side."""
    return Rows.of(spec, STRATEGY.knob_values(spec))


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every split layer, activations exchanged in the row, gradients averaged between rows."""
    passes, rows = spec.accumulation, rows_of(spec)
    # Keras keeps what its layers remember for all devices together, so each pass is one of all of them and sends all.
    each = in_one_pass(spec)
    (worker,) = costs.with_one_counter(tensor_footprint(each, rows, model), spec).groups
    averages = (message for message in worker.messages if message.hidden)
    messages = [
        replace(message, count=message.count * passes) for message in (*_as_laid_out(each, rows, model), *averages)
    ]
    split = sum(part.array_split(array) != "whole" for part in rows.split(model) for array, _ in part.layer.arrays)
    worker = replace(
        worker,
        flops=worker.flops * passes,
        gradient_bytes=worker.gradient_bytes + (worker.parameter_bytes if passes > 1 else 0),
        messages=(*messages, *costs.norm_messages(spec, split, rows.ways)),
    )
    return Footprint((worker,))


def _as_laid_out(spec: RunSpec, rows: Rows, model: ModelFacts) -> list[Message]:
    """A layout map divides whole dimensions of variables only, not heads or channels inside of one: that adds some."""
    splits, ways, samples = rows.split(model), rows.ways, spec.samples_per_step // rows.count
    # The last layer's output stays divided.
    apart = [replace(split, gathers_output=False) for split in splits]
    exchanged = [*tensor_messages(spec, apart, ways, samples)]
    channels = 0
    for split in splits:
        name, shapes = split.layer.name, dict(split.layer.arrays)
        if split.part == "heads":
            payload = QUERY_KEY_VALUE * split.layer.output_elements * samples * FLOAT_BYTES
            exchanged += _both_ways(all_gather(f"queries, keys and values of {name}", payload, ways))
        if split.part == "rows" and channels:
            # Divided by channels before, by rows of pixels after; where those do not divide, everything is gathered.
            payload, name = split.input_elements * samples * FLOAT_BYTES, f"input of {name}"
            moved = payload / ways * (ways - 1) / ways
            divides = split.input_elements // channels % ways == 0
            exchanged += _both_ways((exchange(name, moved, moved),) if divides else all_gather(name, payload, ways))
        if split.gathers_output:
            # Softmax of divided outputs: the largest, the sum, and two more numbers for each position.
            positions = split.layer.output_elements // shapes["kernel"][-1]
            sums = all_reduce("softmax", positions * samples * FLOAT_BYTES, ways)
            exchanged += [replace(message, count=SUMS_OF_SOFTMAX) for message in sums]
        if shapes:
            channels = shapes["kernel"][-1] if split.part == "channels" else 0
    return exchanged


def _both_ways(messages: Iterable[Message]) -> list[Message]:
    return [replace(message, count=2) for message in messages]


def check(spec: RunSpec, system: System) -> str | None:
    """The workers must fill the mesh, and the model must divide."""
    knobs = STRATEGY.knob_values(spec)
    # One worker is a mesh of one.
    if spec.workers == 1:
        knobs["tensor"] = 1
    return declared.check(spec, system) or why_not_split(spec, knobs, spec_facts)


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Keras on JAX, and its devices."""
    return {**declared.environment(spec, process), "KERAS_BACKEND": "jax"}


def open_job(context: Context) -> Job:
    """Keras builds and places the model; the step is that of the other JAX strategies."""
    from paceline.strategies.jax.keras_model_parallel.job import open_parallel

    return open_parallel(context, rows_of(context.spec))


STRATEGY = Strategy(
    name="keras-model-parallel",
    family="hybrid",
    framework="jax",
    about="Keras divides variables over a mesh of devices by a layout map, and batches over its other side",
    use_when="a Keras model is too large for one device and is to stay a Keras model",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob(
            "tensor",
            2,
            "workers along the model side of the mesh, which split layers; the rest are along the batch side",
        ),
        Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
        declared.STEPS_PER_EXECUTION,
    ),
    needs=replace(
        declared.NEEDS,
        devices=("cpu", "cuda"),
        packages=("keras",),
        user_models="keras",
        heeds=declared.STEP_FIELDS - {"recompute"},
        roles=one_process_for_all_workers,
        environment=environment,
        check=check,
        # What XLA's profiler tells of GPUs has not been tried.
        can_be_instrumented=on_cores,
    ),
    traits=Traits(
        # One program over all devices, which sees the whole batch.
        batch_parts=lambda spec: spec.accumulation,
        saved_by="parts",
        replicas=lambda spec: rows_of(spec).count,
        splits_layers=lambda spec: rows_of(spec).ways > 1,
        searched=(Search("tensor", group_sizes_within_a_node(other_than=2)),),
    ),
    testing=Testing(reference=on_one_worker("jax-single")),
)
