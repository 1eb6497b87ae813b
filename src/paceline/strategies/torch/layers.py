"""Plain model parallelism: each worker holds a stretch of the layers, and one batch at a time goes through all of them.

Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012, section 3; the model parallel training of
Bhilegaonkar, Hoskote and Nale. Memory is shared, time is not: while one worker computes, the others wait.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy
from paceline.contract.traits import Traits, one_replica
from paceline.costs.cuts import Pipeline, pipeline_footprint, why_not_cut
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.frameworks.torch import declared
from paceline.spec import RunSpec
from paceline.systems import System


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Activations go from worker to worker and their gradients come back: a pipeline of one micro-batch."""
    return pipeline_footprint(spec, {}, model)


def check(spec: RunSpec, _system: System) -> str | None:
    """There must be a layer for each worker."""
    return why_not_cut(spec, {}, spec_facts)


def open_job(context: Context) -> Job:
    """Each process keeps its own stretch of layers."""
    from paceline.frameworks.torch.pipeline.stages import StageJob, join_stages, one_batch

    pipeline = Pipeline.of(context.spec, {})
    stages = join_stages(context, pipeline, "counted")
    return StageJob(context, stages, one_batch(context, stages, pipeline.samples))


STRATEGY = Strategy(
    name="torch-layers",
    family="model",
    framework="torch",
    synchronous=True,
    about="each worker holds a stretch of the layers; one batch in flight",
    use_when="a model must fit that no device holds alone and nothing faster can cut it",
    footprint=footprint,
    open_job=open_job,
    needs=replace(declared.NEEDS_OF_PARTS, cut_by="stages", check=check),
    traits=Traits(replicas=one_replica, calibrated_like=("torch-pipeline", "torch-tensor")),
)
