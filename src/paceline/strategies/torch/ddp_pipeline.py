"""Data parallel pipelines: several side by side, each on its share of the batch, gradients averaged between them.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, always_cut_by
from paceline.contract.traits import MICROBATCHES_AND_SCHEDULE, Search, Traits, group_sizes
from paceline.costs.cuts import Pipeline, pipeline_footprint, why_not_cut
from paceline.costs.precision import autocast_numbers, compute_width
from paceline.frameworks.torch import declared


def open_job(context: Context) -> Job:
    """Each process keeps its own stage and averages its gradients with the same stage of the other pipelines."""
    from paceline.frameworks.torch.pipeline.stages import StageJob, in_microbatches, join_stages
    from paceline.frameworks.torch.precision import reduction_type
    from paceline.frameworks.torch.worker_grid import average_over_rows

    knobs = STRATEGY.knob_values(context.spec)
    pipeline = Pipeline.of(context.spec, knobs)
    stages = join_stages(context, pipeline, str(knobs["balance"]))
    kind = reduction_type(context.spec)
    average = average_over_rows(stages.grid, stages.parameters(), pipeline.microbatches, kind)
    return StageJob(context, stages, in_microbatches(context, stages, pipeline), average)


STRATEGY: Strategy = Strategy(
    name="torch-ddp-pipeline",
    family="hybrid",
    framework="torch",
    about="pipelines side by side, each on its share of the batch; gradients averaged between them",
    use_when="a pipeline has as many stages as it can use and there are more devices",
    footprint=lambda spec, model: pipeline_footprint(
        spec, STRATEGY.knob_values(spec), model, compute_width(spec), autocast_numbers(spec)
    ),
    open_job=open_job,
    knobs=(
        Knob("stages", 2, "workers in each pipeline; the others form further pipelines"),
        Knob("schedule", "gpipe", "order of the micro-batches' passes", ("gpipe", "1f1b")),
        Knob("microbatches", 4, "parts that each pipeline's share of the batch is cut into"),
        Knob("balance", "counted", "stages of equal counted work, or of equal measured time", ("counted", "measured")),
    ),
    needs=replace(
        declared.NEEDS_OF_PARTS,
        heeds=frozenset({"reduction"}),
        cut_by=always_cut_by("stages"),
        check=lambda spec, _system: why_not_cut(spec, STRATEGY.knob_values(spec), spec_facts),
    ),
    traits=Traits(
        replicas=lambda spec: Pipeline.of(spec, STRATEGY.knob_values(spec)).replicas,
        searched=(Search("stages", group_sizes(other_than=2), then=(MICROBATCHES_AND_SCHEDULE,)),),
        calibrated_like=("torch-pipeline",),
    ),
)
