"""JAX on one worker: the reference of the other JAX strategies."""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing, one_process_per_worker
from paceline.costs import jax as costs
from paceline.frameworks.jax import declared


def open_job(context: Context) -> Job:
    """A mesh of one device."""
    from paceline.frameworks.jax.group import mesh_of
    from paceline.frameworks.jax.instrumentation import jax_job
    from paceline.frameworks.jax.layout import Layout

    return jax_job(context, Layout(mesh_of(context), batch_side=None))


STRATEGY = Strategy(
    name="jax-single",
    family="single",
    framework="jax",
    about="one worker, no communication; every step compiled by XLA",
    use_when="the model is small, or as the baseline of the other JAX strategies",
    footprint=lambda spec, model: costs.worker_footprint(spec, model, (), held=model.parameters),
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION,),
    needs=replace(declared.NEEDS, fixed_workers=1, roles=one_process_per_worker),
    testing=Testing(tolerance=1e-3),
)
