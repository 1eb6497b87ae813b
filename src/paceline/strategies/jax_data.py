"""JAX data parallelism: the batch is divided over a mesh, parameters are on every device, gradients are all-reduced.

`jax.jit` with `NamedSharding`; XLA derives the collectives. Xu et al., "GSPMD: General and Scalable Parallelization for
ML Computation Graphs", 2021.
"""

from paceline.footprint import Footprint, ModelFacts, all_reduce
from paceline.frameworks import jax_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Strategy, on_one_worker


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is on every worker; the gradients go around once."""
    messages = all_reduce("gradients", model.parameter_bytes, spec.workers)
    return jax_facts.worker_footprint(spec, model, messages, held=model.parameters)


def open_job(context: Context) -> Job:
    """Batches divided, all else everywhere."""
    from paceline.frameworks.jax_group import WORKERS, join, mesh_of
    from paceline.frameworks.jax_noted import jax_job
    from paceline.frameworks.jax_training import Layout

    join(context)
    knobs = STRATEGY.knob_values(context.spec)
    return jax_job(context, Layout(mesh_of(context), batch_side=WORKERS), stride=int(knobs["steps_per_execution"]))


STRATEGY = Strategy(
    name="jax-data",
    family="data",
    framework="jax",
    synchronous=True,
    about="each device holds the whole model; XLA averages the gradients of a divided batch",
    use_when="the model fits on one device and computation outweighs sending its gradients",
    footprint=footprint,
    check=lambda spec, _system: jax_facts.check_fields(spec),
    open_job=open_job,
    knobs=(jax_facts.STEPS_PER_EXECUTION, jax_facts.PROCESSES),
    precisions=jax_facts.PRECISIONS,
    executions=jax_facts.EXECUTIONS,
    environment=jax_facts.environment,
    roles=jax_facts.roles,
    reference=on_one_worker("jax-single"),
    is_out_of_memory=jax_facts.is_out_of_memory,
)
