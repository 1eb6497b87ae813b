"""One composed layout: copies, shards, split layers and a pipeline on one mesh of devices.

The mesh is that of torchtitan (Liang et al., ICLR 2025): pipeline, replicate, shard, tensor, of which the last changes
fastest. Layers are cut into stages first, then split over `tensor` (with the sequence divided between them), then
divided over `shard` by FSDP2 with copies over `replicate`.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.layout_search import LAYOUTS
from paceline.contract.strategy import Cut, Knob, Strategy
from paceline.contract.traits import Peaks, Traits
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.layout_checks import why_not_laid_out
from paceline.costs.layout_memory import mesh_peaks
from paceline.costs.layouts import ATTENTION, BALANCES, REDUCE_ABOUT, REDUCTIONS, SCHEDULES, SPLIT_BACKWARD, MeshPlan
from paceline.costs.mesh import mesh_footprint
from paceline.costs.precision import cast_numbers
from paceline.errors import SpecError
from paceline.frameworks.torch import declared
from paceline.spec import RunSpec
from paceline.systems import System
from paceline.workloads.user_model import declared_functions

KNOBS = (
    Knob("schedule", "1f1b", "order of the micro-batches' passes through the pipeline", SCHEDULES),
    Knob("microbatches", 0, "parts of each pass of the pipeline; 0 is two for each of its ranks"),
    Knob("stages_per_worker", 2, "for the interleaved schedules: stages that each rank holds"),
    Knob("balance", "counted", "stages of equal counted work, of equal measured time, or of as many blocks", BALANCES),
    Knob("reduce", "last", REDUCE_ABOUT, REDUCTIONS),
    Knob("convolutions", "split", "with tensor: each rank has some output channels, or all", ("split", "replicated")),
    Knob(
        "attention",
        "gathered",
        "over context: keys and values of all stretches gathered, or sent round in a ring",
        ATTENTION,
    ),
)


def plan_of(spec: RunSpec) -> MeshPlan:
    """The run's layout with its passes and stages."""
    return MeshPlan.of(spec, STRATEGY.knob_values(spec))


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Each rank's part of the model, and what the ranks of each dimension exchange."""
    layout = plan_of(spec).layout
    if spec.model is not None and layout.tensor > 1 and layout.pipeline > 1:
        raise SpecError(
            f"what {spec.model.label} costs with the layers of its stages split is not known; "
            f"ask for a layout without tensor, or without pipeline"
        )
    if model.unfrozen is not model:
        raise SpecError(
            f"what {spec.workload} costs on torch-mesh with parameters that are not trained is not known; "
            f"ask for torch-fsdp or torch-ddp"
        )
    return mesh_footprint(spec, plan_of(spec), model)


def check(spec: RunSpec, system: System) -> str | None:
    """The layout must fit the model, the batch and the schedule."""
    # Sums over gloo, schedules that reduce gradients by themselves and V-shaped ones came one by one until then.
    if declared.is_older(system, 2, 10):
        return f"torch-mesh needs PyTorch 2.10 or newer and this is {system.frameworks['torch']}; upgrade it"
    if {"stages", "plan"} <= set(cut_by(spec)) and "plan" in user_functions(spec):
        return (
            f"the layers of a stage have other names than those in plan(model) of {spec.workload}; "
            f"leave pipeline or tensor out of the layout, or plan out of the file"
        )
    return (
        why_not_laid_out(spec, STRATEGY.knob_values(spec), spec_facts)
        or declared.check_recompute(spec)
        or declared.check_precision(spec)
    )


def cut_by(spec: RunSpec) -> tuple[Cut, ...]:
    """A user's model is cut for a pipeline, and split for tensor parallelism."""
    layout = plan_of(spec).layout
    return (*(("stages",) if layout.pipeline > 1 else ()), *(("plan",) if layout.tensor > 1 else ()))


def passes_one_tensor(spec: RunSpec) -> bool:
    """Whether the layout cuts models or sequences; copies and shards take any batch."""
    layout = plan_of(spec).layout
    return max(layout.pipeline, layout.tensor, layout.context) > 1


def batch_parts(spec: RunSpec) -> int:
    """Micro-batches of all data ranks in a step."""
    plan = plan_of(spec)
    return plan.layout.data_ranks * plan.accumulation * (plan.microbatches if plan.layout.pipeline > 1 else 1)


def user_functions(spec: RunSpec) -> set[str]:
    """Functions of the user's file; none where the model is built in."""
    return declared_functions(spec.model) if spec.model is not None else set()


def can_be_instrumented(spec: RunSpec) -> bool:
    """Whether backward passes are single calls, which can be timed; those of zero-bubble schedules are not."""
    plan = plan_of(spec)
    return plan.layout.pipeline == 1 or plan.schedule not in SPLIT_BACKWARD


def open_job(context: Context) -> Job:
    """Builds this process's part of the mesh."""
    from paceline.strategies.torch.mesh.job import open_mesh

    return open_mesh(context, plan_of(context.spec), str(STRATEGY.knob_values(context.spec)["balance"]))


STRATEGY = Strategy(
    name="torch-mesh",
    family="hybrid",
    framework="torch",
    about="copies, shards, split layers and a pipeline composed on one mesh, as the layout says",
    use_when="one way to divide the model is not enough, or to compare layouts of the same devices",
    footprint=footprint,
    open_job=open_job,
    knobs=KNOBS,
    needs=replace(
        declared.NEEDS_OF_PARTS,
        executions=("eager", "compiled"),
        heeds=declared.STEP_FIELDS | {"layout", "reduction", "offload"},
        # A pass takes a part of the batch, which loader processes would have read whole.
        loader_processes=False,
        check=check,
        cut_by=cut_by,
        one_tensor=passes_one_tensor,
        can_be_instrumented=can_be_instrumented,
    ),
    traits=Traits(
        saved_by="parts",
        replicas=lambda spec: plan_of(spec).layout.data_ranks,
        batch_parts=batch_parts,
        splits_layers=lambda spec: plan_of(spec).layout.tensor > 1,
        peaks=Peaks(
            lambda spec, model, footprint, step: mesh_peaks(spec, plan_of(spec), model, footprint, step),
            samples=lambda spec: plan_of(spec).stretch_microbatch,
            casts=True,
        ),
        searched=(LAYOUTS,),
        lighter_with={"reduce": "each"},
        calibrated_like=("torch-fsdp",),
        numbers=cast_numbers,
    ),
)
