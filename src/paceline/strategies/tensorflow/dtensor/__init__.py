"""TensorFlow DTensor: a mesh of devices with a dimension for the batch and one for the layers, in one process.

https://www.tensorflow.org/guide/dtensor_overview. With `tensor` 1 every device has the whole model and a share of the
batch; above 1 so many devices split each dense and attention layer between them (Shoeybi et al., "Megatron-LM", 2019).
"""

from collections.abc import Mapping
from dataclasses import replace

from paceline.contract.context import Context, Process, spec_facts, spec_layers
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing, on_one_worker, one_process_for_all_workers
from paceline.contract.traits import Search, Traits, group_sizes_within_a_node
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, in_all_passes, in_one_pass
from paceline.costs.messages import reduce_scatter
from paceline.costs.splits import Rows, tensor_footprint, why_not_split
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec, Scalar
from paceline.systems import System
from paceline.workloads.layers import Block, Conv, Dense, Embed, Flatten, MaxPool, Norm

# The layers that `model.py` writes out in plain TensorFlow.
LAYERS = (Conv, MaxPool, Flatten, Dense, Embed, Norm, Block)


def split_knobs(spec: RunSpec) -> Mapping[str, Scalar]:
    """DTensor divides convolutions by samples only."""
    return {**STRATEGY.knob_values(spec), "convolutions": "replicated"}


def rows_of(spec: RunSpec) -> Rows:
    """The mesh: devices that split layers, and replicas of those."""
    return Rows.of(spec, split_knobs(spec))


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Its pass that joins all-reduces makes variables read old values after an assignment: silently wrong training."""
    return declared.environment(spec, process) | {"DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION": "0"}


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Tensor parallelism in rows; optimizer state is divided as the arrays are, and one counter of steps is kept."""
    one_pass = tensor_footprint(
        in_one_pass(spec), rows_of(spec), model, lambda _spec, *message: reduce_scatter(*message)
    )
    worker = in_all_passes(one_pass.groups[0], spec.accumulation)
    settings = spec.optimizer
    slots = costs.optimizer_bytes(settings, worker.parameter_bytes / FLOAT_BYTES) - costs.counter_bytes(settings)
    counter = FLOAT_BYTES if settings.update_name == "adam" or settings.scheduled else 0
    return Footprint((replace(worker, optimizer_bytes=slots + counter),))


def check(spec: RunSpec, system: System) -> str | None:
    """Layers must divide, and be known."""
    if spec.model is not None:
        return (
            "tf-dtensor cannot train a Keras model: Keras 3 makes variables that no mesh knows; "
            "use a built-in workload here, or keras-model-parallel"
        )
    return declared.check(spec, system) or _unknown_layer(spec) or why_not_split(spec, split_knobs(spec), spec_facts)


def _unknown_layer(spec: RunSpec) -> str | None:
    for layer in spec_layers(spec)[0]:
        if not isinstance(layer, LAYERS):
            return (
                f"tf-dtensor has no {type(layer).__name__} layer, which {spec.workload} needs; "
                f"use another workload here, or keras-model-parallel"
            )
    return None


def open_job(context: Context) -> Job:
    """All devices in one process."""
    from paceline.strategies.tensorflow.dtensor.job import dtensor_job

    return dtensor_job(context, rows_of(context.spec), declared.steps_per_call(context.spec))


STRATEGY = Strategy(
    name="tf-dtensor",
    family="hybrid",
    framework="tensorflow",
    about="one process: a mesh of devices that divides the batch, and with knob tensor the layers too",
    use_when="built-in models, to see what one program with layouts makes of a batch and a model dimension",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("tensor", 1, "devices that split each layer between them; the others are replicas of those"),
        declared.STEPS_PER_EXECUTION,
    ),
    needs=replace(
        declared.NEEDS,
        precisions=("fp32",),
        executions=("eager",),
        heeds=declared.STEP_FIELDS - {"recompute"},
        roles=one_process_for_all_workers,
        environment=environment,
        check=check,
    ),
    traits=Traits(
        saved_by="parts",
        replicas=lambda spec: rows_of(spec).count,
        splits_layers=lambda spec: rows_of(spec).ways > 1,
        searched=(Search("tensor", group_sizes_within_a_node(other_than=1)),),
    ),
    testing=Testing(reference=on_one_worker("tf-single")),
)
