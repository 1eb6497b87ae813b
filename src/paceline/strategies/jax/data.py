"""JAX data parallelism: the batch is divided over a mesh, parameters are on every device, gradients are all-reduced.

`jax.jit` with `NamedSharding`; XLA derives the collectives (Xu et al., "GSPMD", 2021).
"""

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing, on_one_worker
from paceline.contract.traits import Traits
from paceline.costs import jax as costs
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.messages import all_reduce
from paceline.frameworks.jax import declared
from paceline.layout import Layout
from paceline.spec import RunSpec


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is on every worker; the gradients go around once."""
    messages = all_reduce("gradients", model.parameter_bytes, spec.workers)
    return costs.worker_footprint(spec, model, messages, held=model.parameters)


def open_job(context: Context) -> Job:
    """Batches divided, all else everywhere."""
    from paceline.frameworks.jax.group import WORKERS, join, mesh_of
    from paceline.frameworks.jax.instrumentation import jax_job
    from paceline.frameworks.jax.layout import Layout

    join(context)
    return jax_job(context, Layout(mesh_of(context), batch_side=WORKERS))


STRATEGY = Strategy(
    name="jax-data",
    family="data",
    framework="jax",
    about="each device holds the whole model; XLA averages the gradients of a divided batch",
    use_when="the model fits on one device and computation outweighs sending its gradients",
    footprint=footprint,
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION, declared.PROCESSES),
    needs=declared.NEEDS,
    traits=Traits(
        usual_on_several_devices=True,
        batch_parts=declared.batch_parts,
        layout=lambda spec: Layout(replicate=spec.workers),
    ),
    testing=Testing(reference=on_one_worker("jax-single")),
)
