"""JAX on one worker: the reference of the other JAX strategies."""

from paceline.footprint import Footprint, ModelFacts
from paceline.frameworks import jax_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Strategy, on_one_worker


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is here and nothing is sent."""
    return jax_facts.worker_footprint(spec, model, (), held=model.parameters)


def open_job(context: Context) -> Job:
    """A mesh of one device."""
    from paceline.frameworks.jax_group import mesh_of
    from paceline.frameworks.jax_noted import jax_job
    from paceline.frameworks.jax_training import Layout

    knobs = STRATEGY.knob_values(context.spec)
    return jax_job(context, Layout(mesh_of(context), batch_side=None), stride=int(knobs["steps_per_execution"]))


STRATEGY = Strategy(
    name="jax-single",
    family="single",
    framework="jax",
    synchronous=True,
    about="one worker, no communication; every step compiled by XLA",
    use_when="the model is small, or as the baseline of the other JAX strategies",
    footprint=footprint,
    check=lambda spec, _system: jax_facts.check_fields(spec),
    open_job=open_job,
    knobs=(jax_facts.STEPS_PER_EXECUTION,),
    precisions=jax_facts.PRECISIONS,
    executions=jax_facts.EXECUTIONS,
    environment=jax_facts.environment,
    fixed_workers=1,
    tolerance=1e-3,
    reference=on_one_worker("torch-single"),
    is_out_of_memory=jax_facts.is_out_of_memory,
)
