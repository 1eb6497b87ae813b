"""TensorFlow DTensor: a mesh of devices with a dimension for the batch and one for the layers, in one process.

https://www.tensorflow.org/guide/dtensor_overview. With `tensor` 1 every device has the whole model and a share of the
batch; above 1 so many devices split each dense and attention layer between them (Shoeybi et al., "Megatron-LM", 2019).
"""

from collections.abc import Mapping
from dataclasses import replace

from paceline.contract.context import Context, Process, spec_facts, spec_layers
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Role, Strategy, on_cores, on_one_worker
from paceline.costs import tensorflow as costs
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts
from paceline.costs.splits import Rows, tensor_footprint, why_not_split
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec, Scalar
from paceline.systems import System
from paceline.workloads.layers import Block, Conv, Dense, Embed, Flatten, MaxPool, Norm

# The layers that `model.py` writes out in plain TensorFlow.
LAYERS = (Conv, MaxPool, Flatten, Dense, Embed, Norm, Block)
KNOBS = (
    Knob("tensor", 1, "devices that split each layer between them; the others are replicas of those"),
    declared.STEPS_PER_EXECUTION,
)


def split_knobs(spec: RunSpec) -> Mapping[str, Scalar]:
    """DTensor divides convolutions by samples only."""
    return {**STRATEGY.knob_values(spec), "convolutions": "replicated"}


def environment(spec: RunSpec, process: Process) -> dict[str, str]:
    """Its pass that joins all-reduces makes variables read old values after an assignment: silently wrong training."""
    return declared.environment(spec, process) | {"DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION": "0"}


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """As with tensor parallelism in rows; what the optimizer keeps lies as the arrays do, and Adam counts its steps."""
    (worker,) = tensor_footprint(spec, Rows.of(spec, split_knobs(spec)), model).groups
    beside = costs.optimizer_bytes(spec.optimizer, worker.parameter_bytes / FLOAT_BYTES) - costs.COUNTER_BYTES
    return Footprint((replace(worker, optimizer_bytes=beside + (FLOAT_BYTES if spec.optimizer.name == "adam" else 0)),))


def check(spec: RunSpec, _system: System) -> str | None:
    """Layers must divide, and be known."""
    if spec.model is not None:
        return (
            "tf-dtensor cannot train a Keras model: Keras 3 makes variables that no mesh knows; "
            "use a built-in workload here, or keras-model-parallel"
        )
    return declared.check(spec) or _unknown_layer(spec) or why_not_split(spec, split_knobs(spec), spec_facts)


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
    from paceline.strategies.tensorflow.dtensor.instrumented import dtensor_job

    rows = Rows.of(context.spec, split_knobs(context.spec))
    return dtensor_job(context, rows, int(STRATEGY.knob_values(context.spec)["steps_per_execution"]))


STRATEGY = Strategy(
    name="tf-dtensor",
    family="hybrid",
    framework="tensorflow",
    synchronous=True,
    about="one process: a mesh of devices that divides the batch, and with knob tensor the layers too",
    use_when="built-in models, to see what one program with layouts makes of a batch and a model dimension",
    footprint=footprint,
    check=check,
    open_job=open_job,
    devices=declared.DEVICES,
    knobs=KNOBS,
    environment=environment,
    roles=lambda spec: (Role("worker", 1, workers_each=spec.workers),),
    replicas=lambda spec: Rows.of(spec, split_knobs(spec)).count,
    needs=("keras",),
    own_models="keras",
    reference=on_one_worker("tf-single"),
    # What TensorFlow's profiler tells of GPUs has not been tried.
    can_be_instrumented=on_cores,
    is_out_of_memory=declared.is_out_of_memory,
)
