"""Plain model parallelism: each worker holds a stretch of the layers, and one batch at a time goes through all of them.

Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012, section 3; the model parallel training of
Bhilegaonkar, Hoskote and Nale. Memory is shared, time is not: while one worker computes, the others wait.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, always_cut_by
from paceline.contract.traits import Traits, always, one_replica
from paceline.costs.cuts import Pipeline, pipeline_footprint, why_not_cut
from paceline.costs.precision import autocast_numbers, compute_width
from paceline.frameworks.torch import declared


def open_job(context: Context) -> Job:
    """Each process keeps its own stretch of layers."""
    from paceline.frameworks.torch.pipeline.stages import StageJob, join_stages, one_batch

    pipeline = Pipeline.of(context.spec, {})
    stages = join_stages(context, pipeline, "counted")
    return StageJob(context, stages, one_batch(context, stages, pipeline.samples))


STRATEGY: Strategy = Strategy(
    name="torch-layers",
    family="model",
    framework="torch",
    about="each worker holds a stretch of the layers; one batch in flight",
    use_when="a model must fit that no device holds alone and nothing faster can cut it",
    # A pipeline of one micro-batch.
    footprint=lambda spec, model: pipeline_footprint(spec, {}, model, compute_width(spec), autocast_numbers(spec)),
    open_job=open_job,
    needs=replace(
        declared.NEEDS_OF_PARTS,
        one_tensor=always,
        cut_by=always_cut_by("stages"),
        check=lambda spec, _system: why_not_cut(spec, {}, spec_facts),
    ),
    traits=Traits(saved_by="parts", replicas=one_replica, calibrated_like=("torch-pipeline", "torch-tensor")),
)
