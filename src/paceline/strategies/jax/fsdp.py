"""JAX fully sharded data parallelism: parameters and optimizer state are divided over the devices, gathered for use.

`jax.jit` with `NamedSharding`: each array is divided along its largest dimension that divides. Rajbhandari et al.,
"ZeRO", SC 2020; Xu et al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training", 2020.
"""

import math

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Strategy, Testing, on_one_worker
from paceline.contract.traits import Traits
from paceline.costs import jax as costs
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts
from paceline.costs.messages import all_gather, all_reduce, scattered_reduction
from paceline.frameworks.jax import declared
from paceline.layout import Layout
from paceline.spec import RunSpec


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every array that divides is here for good, the whole of it for a step."""
    ways = spec.workers
    shapes = [shape for layer in model.layers for _, shape in layer.arrays]
    divided = sum(math.prod(shape) for shape in shapes if costs.divided_dimension(shape, ways) is not None)
    arrays = sum(costs.divided_dimension(shape, ways) is not None for shape in shapes)
    whole = model.parameters - divided
    messages = (
        *all_gather("parameters", divided * FLOAT_BYTES, ways),
        *scattered_reduction(spec, "gradients", divided * FLOAT_BYTES, ways),
        *all_reduce("gradients of arrays that do not divide", whole * FLOAT_BYTES, ways if whole else 1),
        *costs.norm_messages(spec, arrays, ways),
    )
    return costs.worker_footprint(
        spec, model, messages, held=whole + divided / ways, gathered_bytes=divided * FLOAT_BYTES if ways > 1 else 0
    )


def open_job(context: Context) -> Job:
    """Batches and parameters divided over the same devices."""
    from jax.sharding import PartitionSpec

    from paceline.frameworks.jax.group import WORKERS, join, mesh_of
    from paceline.frameworks.jax.instrumentation import jax_job
    from paceline.frameworks.jax.layout import Layout

    def part(_name: str, shape: tuple[int, ...]) -> PartitionSpec:
        dimension = costs.divided_dimension(shape, context.spec.workers)
        return PartitionSpec() if dimension is None else PartitionSpec(*[None] * dimension, WORKERS)

    join(context)
    layout = Layout(mesh_of(context), batch_side=WORKERS, part=part, gathers=True)
    return jax_job(context, layout)


STRATEGY = Strategy(
    name="jax-fsdp",
    family="data",
    framework="jax",
    about="parameters and optimizer state are divided over the devices and gathered in each step",
    use_when="the model with its gradients and optimizer state does not fit on one device",
    footprint=footprint,
    open_job=open_job,
    knobs=(declared.STEPS_PER_EXECUTION, declared.PROCESSES),
    needs=declared.NEEDS,
    traits=Traits(saved_by="parts", batch_parts=declared.batch_parts, layout=lambda spec: Layout(shard=spec.workers)),
    testing=Testing(reference=on_one_worker("jax-single")),
)
