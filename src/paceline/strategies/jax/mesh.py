"""JAX on one composed layout: copies, shards and split layers on one mesh of devices.

`jax.jit` with `NamedSharding` over three sides (replicate, shard, tensor, of which the last changes fastest); XLA
derives the collectives (Xu et al., "GSPMD", 2021). Layers are split as in jax-tensor, and what is left of each array is
divided as in jax-fsdp.
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing, on_cores, on_one_worker
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.jax_mesh import layout_of, mesh_footprint, why_not_on_mesh
from paceline.frameworks.jax import declared
from paceline.layout import DIMENSIONS
from paceline.spec import RunSpec
from paceline.systems import System
from paceline.workloads.user_model import declared_functions

SIDES = ("replicate", "shard", "tensor")


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every layer and a share of what is left of it; activations and gradients are exchanged."""
    return mesh_footprint(spec, layout_of(spec), model)


def check(spec: RunSpec, system: System) -> str | None:
    """Why a run is refused: a layout has another dimension than these three, or the model does not divide."""
    layout = layout_of(spec)
    missing = next((name for name in DIMENSIONS if name not in SIDES and getattr(layout, name) > 1), None)
    if missing is not None:
        return (
            f"jax-mesh has no {missing} and layout {layout.text} has {missing}={getattr(layout, missing)}; "
            f"use replicate, shard and tensor alone, or torch-mesh"
        )
    if spec.model is not None and layout.tensor > 1 and "plan" not in declared_functions(spec.model):
        return (
            f"jax-mesh does not know how to split {spec.model.label} over tensor={layout.tensor}; "
            f"add a function plan to {spec.model.path.name} (docs/workloads.md), or use shard and replicate"
        )
    return declared.check(spec, system) or why_not_on_mesh(spec, layout, spec_facts)


def can_be_instrumented(spec: RunSpec) -> bool:
    """Where layers are split, XLA's profiler takes the step apart, and what it tells of GPUs has not been tried."""
    return layout_of(spec).tensor == 1 or on_cores(spec)


def open_job(context: Context) -> Job:
    """A mesh with a side for each dimension; batches are divided over the first two together."""
    from paceline.frameworks.jax.group import join, mesh_of
    from paceline.frameworks.jax.instrumentation import jax_job
    from paceline.frameworks.jax.placement import Sides, split_layout

    join(context)
    layout = layout_of(context.spec)
    mesh = mesh_of(context, **{side: getattr(layout, side) for side in SIDES})
    sides = Sides(mesh, tensor="tensor", batch=("replicate", "shard"), shard="shard" if layout.shard > 1 else None)
    return jax_job(context, split_layout(context, sides), divided=layout.tensor > 1)


STRATEGY = Strategy(
    name="jax-mesh",
    family="hybrid",
    framework="jax",
    about="copies, shards and split layers composed on one mesh, as the layout says; XLA derives what is sent",
    use_when="one way to divide a JAX model is not enough, or to compare layouts of the same devices",
    footprint=footprint,
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION, declared.PROCESSES),
    needs=replace(
        declared.NEEDS,
        heeds=declared.STEP_FIELDS | {"layout"},
        check=check,
        can_be_instrumented=can_be_instrumented,
    ),
    traits=Traits(
        saved_by="parts",
        replicas=lambda spec: layout_of(spec).data_ranks,
        batch_parts=lambda spec: declared.batch_parts(spec, layout_of(spec).data_ranks),
        splits_layers=lambda spec: layout_of(spec).tensor > 1,
    ),
    testing=Testing(reference=on_one_worker("jax-single")),
)
