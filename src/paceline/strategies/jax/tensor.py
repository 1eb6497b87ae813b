"""JAX tensor parallelism: every layer that divides is split over the devices; XLA sums or gathers activations.

Shoeybi et al., "Megatron-LM", 2019, written as shardings of parameters and activations (Xu et al., "GSPMD", 2021).
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing, always_cut_by, on_cores, on_one_worker
from paceline.contract.traits import Traits, always, one_replica
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.jax_mesh import mesh_footprint
from paceline.costs.splits import why_not_split
from paceline.frameworks.jax import declared
from paceline.layout import Layout
from paceline.spec import RunSpec
from paceline.systems import System


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every split layer, and activations exchanged between them."""
    return mesh_footprint(spec, Layout(tensor=spec.workers), model, splits_convolutions(spec))


def splits_convolutions(spec: RunSpec) -> bool:
    """Whether each worker has some output channels of a convolution, not all of them."""
    return STRATEGY.knob_values(spec)["convolutions"] == "split"


def check(spec: RunSpec, system: System) -> str | None:
    """Heads must divide, and something must."""
    return declared.check(spec, system) or why_not_split(spec, STRATEGY.knob_values(spec), spec_facts)


def open_job(context: Context) -> Job:
    """All devices in one row; each sees the whole batch."""
    from paceline.frameworks.jax.group import WORKERS, join, mesh_of
    from paceline.frameworks.jax.instrumentation import jax_job
    from paceline.frameworks.jax.placement import Sides, split_layout

    join(context)
    layout = split_layout(context, Sides(mesh_of(context), tensor=WORKERS), splits_convolutions(context.spec))
    return jax_job(context, layout, divided=True)


STRATEGY = Strategy(
    name="jax-tensor",
    family="model",
    framework="jax",
    about="each layer is split over all devices, which exchange activations between layers",
    use_when="single layers are too large for one device and the devices share a very fast link",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
        declared.STEPS_PER_EXECUTION,
        declared.PROCESSES,
    ),
    needs=replace(
        declared.NEEDS,
        cut_by=always_cut_by("plan"),
        check=check,
        # What XLA's profiler tells of GPUs has not been tried.
        can_be_instrumented=on_cores,
    ),
    traits=Traits(saved_by="parts", replicas=one_replica, splits_layers=always),
    testing=Testing(reference=on_one_worker("jax-single")),
)
