"""Pipeline parallelism: each worker holds some stages, and micro-batches of the batch are in flight at the same time.

"GPipe", NeurIPS 2019; "PipeDream", SOSP 2019 (1F1B); Narayanan et al., "Megatron-LM", SC 2021 (interleaved).
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, always_cut_by
from paceline.contract.traits import MICROBATCHES_AND_SCHEDULE, Traits, always, one_replica
from paceline.costs.cuts import Pipeline, pipeline_footprint, why_not_cut
from paceline.costs.precision import autocast_numbers, compute_width
from paceline.frameworks.torch import declared


def open_job(context: Context) -> Job:
    """Each process keeps its own stages."""
    from paceline.frameworks.torch.pipeline.stages import StageJob, in_microbatches, join_stages

    knobs = STRATEGY.knob_values(context.spec)
    pipeline = Pipeline.of(context.spec, knobs)
    stages = join_stages(context, pipeline, str(knobs["balance"]))
    return StageJob(context, stages, in_microbatches(context, stages, pipeline))


STRATEGY: Strategy = Strategy(
    name="torch-pipeline",
    family="model",
    framework="torch",
    about="each worker holds a stage of the layers; micro-batches keep all of them busy",
    use_when="a deep model does not fit on one device and the link is slow",
    footprint=lambda spec, model: pipeline_footprint(
        spec, STRATEGY.knob_values(spec), model, compute_width(spec), autocast_numbers(spec)
    ),
    open_job=open_job,
    knobs=(
        Knob("schedule", "gpipe", "order of the micro-batches' passes", ("gpipe", "1f1b", "interleaved")),
        Knob(
            "microbatches", 4, "parts that the batch is cut into; more of them leave workers idle for less of the time"
        ),
        Knob("stages_per_worker", 2, "for schedule interleaved: stages that each worker holds"),
        Knob("balance", "counted", "stages of equal counted work, or of equal measured time", ("counted", "measured")),
    ),
    needs=replace(
        declared.NEEDS_OF_PARTS,
        one_tensor=always,
        cut_by=always_cut_by("stages"),
        check=lambda spec, _system: why_not_cut(spec, STRATEGY.knob_values(spec), spec_facts),
    ),
    traits=Traits(
        saved_by="parts",
        replicas=one_replica,
        batch_parts=lambda spec: Pipeline.of(spec, STRATEGY.knob_values(spec)).microbatches,
        searched=(MICROBATCHES_AND_SCHEDULE,),
        timed_on=("mlp",),
        calibrated_like=("torch-tensor",),
    ),
)
