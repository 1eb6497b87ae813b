"""JAX tensor parallelism: every layer that divides is split over the devices; XLA sums or gathers activations.

Shoeybi et al., "Megatron-LM", 2019, written as shardings of parameters and activations (Xu et al., "GSPMD", 2021).
"""

from dataclasses import replace

from paceline.contract.context import Context, spec_facts
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing, always_cut_by, on_cores, on_one_worker
from paceline.contract.traits import Traits, always, one_replica
from paceline.costs import jax as costs
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.splits import Rows, tensor_footprint, why_not_split
from paceline.frameworks.jax import declared
from paceline.spec import RunSpec
from paceline.systems import System


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every split layer, and activations exchanged between them."""
    rows = Rows.of(spec, STRATEGY.knob_values(spec))
    return costs.with_one_counter(tensor_footprint(spec, rows, model), spec)


def check(spec: RunSpec, system: System) -> str | None:
    """Heads must divide, and something must."""
    return declared.check(spec, system) or why_not_split(spec, STRATEGY.knob_values(spec), spec_facts)


def open_job(context: Context) -> Job:
    """All devices in one row; each sees the whole batch."""
    from paceline.frameworks.jax.group import join, mesh_of
    from paceline.frameworks.jax.instrumentation import jax_job
    from paceline.strategies.jax.tensor.placement import split_layout

    join(context)
    rows = Rows.of(context.spec, STRATEGY.knob_values(context.spec))
    return jax_job(context, split_layout(context, rows, mesh_of(context)), divided=True)


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
    traits=Traits(replicas=one_replica, splits_layers=always),
    testing=Testing(reference=on_one_worker("jax-single")),
)
