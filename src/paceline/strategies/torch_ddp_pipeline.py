"""Data parallel pipelines: several side by side, each on its share of the batch, gradients averaged between them.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021.
"""

from paceline.footprint import Footprint, ModelFacts
from paceline.frameworks import torch_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Knob, Strategy, spec_layers
from paceline.systems import System
from paceline.workloads.cuts import Pipeline, pipeline_footprint, why_not_cut

KNOBS = (
    Knob("stages", 2, "workers in each pipeline; the others form further pipelines"),
    Knob("schedule", "gpipe", "order of the micro-batches' passes", ("gpipe", "1f1b")),
    Knob("microbatches", 4, "parts that each pipeline's share of the batch is cut into"),
    Knob("balance", "counted", "stages of equal counted work, or of equal measured time", ("counted", "measured")),
)


def replicas(spec: RunSpec) -> int:
    """Pipelines that share the batch."""
    return Pipeline.of(spec, STRATEGY.knob_values(spec)).replicas


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A pipeline's messages, and each stage's gradients averaged over the pipelines."""
    return pipeline_footprint(spec, STRATEGY.knob_values(spec), model)


def check(spec: RunSpec, _system: System) -> str | None:
    """The workers must divide into pipelines, and each pipeline must be possible."""
    return why_not_cut(spec, STRATEGY.knob_values(spec), spec_layers)


def open_job(context: Context) -> Job:
    """Each process keeps its own stage and averages its gradients with the same stage of the other pipelines."""
    from paceline.frameworks.torch_grid import average_over_rows
    from paceline.frameworks.torch_stages import StageJob, in_microbatches, join_line

    knobs = STRATEGY.knob_values(context.spec)
    pipeline = Pipeline.of(context.spec, knobs)
    line = join_line(context, pipeline, str(knobs["balance"]))
    average = average_over_rows(line.grid, line.parameters(), pipeline.microbatches)
    return StageJob(context, line, in_microbatches(context, line, pipeline), average)


STRATEGY = Strategy(
    name="torch-ddp-pipeline",
    family="hybrid",
    framework="torch",
    synchronous=True,
    about="pipelines side by side, each on its share of the batch; gradients averaged between them",
    use_when="a pipeline has as many stages as it can use and there are more devices",
    footprint=footprint,
    check=check,
    open_job=open_job,
    knobs=KNOBS,
    precisions=("fp32", "tf32"),
    replicas=replicas,
    cut_by="stages",
    is_out_of_memory=torch_facts.is_out_of_memory,
)
