"""Plain model parallelism in TensorFlow: each device holds a stretch of the layers, placed there by `tf.device`.

The model parallel training of Bhilegaonkar, Hoskote and Nale. One process drives all devices; on CPU they are logical
ones, a core each. With micro-batches a device works on one while the next device has the one before, as in GPipe.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import (
    Knob,
    Strategy,
    Testing,
    always_cut_by,
    on_cores,
    on_one_worker,
    one_process_for_all_workers,
)
from paceline.contract.traits import Search, Traits, always, batch_parts, one_replica
from paceline.costs import tensorflow as costs
from paceline.costs.cuts import pipeline_footprint, why_not_cut
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, in_all_passes, in_one_pass
from paceline.frameworks.tensorflow import declared
from paceline.spec import RunSpec
from paceline.systems import System


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A pipeline in which each device that has parameters has an optimizer of its own."""
    pipeline = pipeline_footprint(in_one_pass(spec), STRATEGY.knob_values(spec), model)
    held = [group.parameter_bytes / FLOAT_BYTES for group in pipeline.groups]
    beside = [costs.optimizer_bytes(spec.optimizer, parameters) if parameters else 0 for parameters in held]
    groups = zip(pipeline.groups, beside, strict=True)
    return replace(
        pipeline,
        groups=tuple(in_all_passes(replace(group, optimizer_bytes=size), spec.accumulation) for group, size in groups),
    )


def check(spec: RunSpec, system: System) -> str | None:
    """There must be a layer for each device."""
    return declared.check(spec, system) or why_not_cut(spec, STRATEGY.knob_values(spec), spec_facts)


def open_job(context: Context) -> Job:
    """All devices in one process."""
    from paceline.strategies.tensorflow.layers.instrumented import layers_job

    return layers_job(context, int(STRATEGY.knob_values(context.spec)["microbatches"]))


def can_be_instrumented(spec: RunSpec) -> bool:
    """Taken apart, micro-batches would no longer be in several stages at once, which is what they are for."""
    one_pass = STRATEGY.knob_values(spec)["microbatches"] == spec.accumulation == 1
    return on_cores(spec) and one_pass and spec.clip is None


STRATEGY: Strategy = Strategy(
    name="tf-layers",
    family="model",
    framework="tensorflow",
    about="one process: each device holds a stretch of the layers, placed there by tf.device",
    use_when="a Keras model must fit that no device of the machine holds alone",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("microbatches", 1, "parts of the batch that follow one another through the devices"),
        declared.STEPS_PER_EXECUTION,
    ),
    needs=replace(
        declared.NEEDS,
        executions=("eager",),
        heeds=declared.STEP_FIELDS,
        cut_by=always_cut_by("stages"),
        one_tensor=always,
        roles=one_process_for_all_workers,
        check=check,
        can_be_instrumented=can_be_instrumented,
    ),
    traits=Traits(
        saved_by="parts",
        replicas=one_replica,
        batch_parts=lambda spec: int(STRATEGY.knob_values(spec)["microbatches"]) * spec.accumulation,
        searched=(Search("microbatches", batch_parts),),
    ),
    testing=Testing(reference=on_one_worker("tf-single")),
)
