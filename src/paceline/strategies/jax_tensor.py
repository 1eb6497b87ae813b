"""JAX tensor parallelism: every layer that divides is split over the devices; XLA sums or gathers activations.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, written
as shardings of parameters and activations (Xu et al., "GSPMD", 2021).
"""

from functools import partial

from paceline.footprint import Footprint, ModelFacts
from paceline.frameworks import jax_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Knob, Strategy, on_cores, on_one_worker, spec_layers
from paceline.systems import System
from paceline.workloads.splits import Rows, tensor_footprint, why_not_split

KNOBS = (
    Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
    jax_facts.STEPS_PER_EXECUTION,
    jax_facts.PROCESSES,
)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every split layer, and activations exchanged between them."""
    rows = Rows.of(spec, STRATEGY.knob_values(spec))
    return jax_facts.with_one_counter(
        tensor_footprint(spec, rows, model, partial(jax_facts.scattered_reduction, spec)), spec
    )


def check(spec: RunSpec, _system: System) -> str | None:
    """Heads must divide, and something must."""
    return jax_facts.check_fields(spec) or why_not_split(spec, STRATEGY.knob_values(spec), spec_layers)


def open_job(context: Context) -> Job:
    """All devices in one row; each sees the whole batch."""
    from paceline.frameworks.jax_group import join, mesh_of
    from paceline.frameworks.jax_noted import jax_job
    from paceline.frameworks.jax_tensor import split_layout

    join(context)
    knobs = STRATEGY.knob_values(context.spec)
    layout = split_layout(context, Rows.of(context.spec, knobs), mesh_of(context))
    return jax_job(context, layout, stride=int(knobs["steps_per_execution"]), divided=True)


STRATEGY = Strategy(
    name="jax-tensor",
    family="model",
    framework="jax",
    synchronous=True,
    about="each layer is split over all devices, which exchange activations between layers",
    use_when="single layers are too large for one device and the devices share a very fast link",
    footprint=footprint,
    check=check,
    open_job=open_job,
    knobs=KNOBS,
    precisions=jax_facts.PRECISIONS,
    executions=jax_facts.EXECUTIONS,
    environment=jax_facts.environment,
    roles=jax_facts.roles,
    replicas=lambda _spec: 1,
    cut_by="plan",
    reference=on_one_worker("jax-single"),
    # What XLA's profiler tells of GPUs has not been tried.
    traces=on_cores,
    is_out_of_memory=jax_facts.is_out_of_memory,
)
