"""PyTorch DistributedDataParallel: every worker holds the model and averages gradients by all-reduce.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020. Gradients are sent in
buckets while the backward pass still runs.
"""

from paceline.footprint import Footprint, ModelFacts, RankFootprint, all_reduce, optimizer_bytes, training_flops
from paceline.frameworks import torch_facts
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Knob, Strategy

KNOBS = (
    Knob("bucket_mb", 25.0, "size of a gradient bucket in MiB; PyTorch's default is 25"),
    Knob("gradient_as_bucket_view", True, "gradients live inside the buckets: saves a copy and their memory"),
    Knob("static_graph", False, "promise that the same parameters are used in each step"),
)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is on every worker; the gradients go around once."""
    size, local = model.parameter_bytes, spec.samples_per_step // spec.workers
    in_buckets = bool(STRATEGY.knob_values(spec)["gradient_as_bucket_view"])
    worker = RankFootprint(
        role="worker",
        ranks=spec.workers,
        flops=training_flops(model, local),
        messages=all_reduce("gradients", size, spec.workers),
        parameter_bytes=size,
        gradient_bytes=size if in_buckets else 2 * size,
        optimizer_bytes=optimizer_bytes(spec.optimizer, model.parameters, model.tensors),
        activation_bytes=model.activation_bytes * local,
    )
    return Footprint((worker,))


def open_job(context: Context) -> Job:
    """Wraps the module; the loop is the same as for one worker."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from paceline.frameworks.torch_group import join_group, leave_group
    from paceline.frameworks.torch_training import TorchJob, build, optimizer_for, torch_device

    device = torch_device(context)
    join_group(context)
    module = build(context, device)
    knobs = STRATEGY.knob_values(context.spec)
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=float(knobs["bucket_mb"]),
        gradient_as_bucket_view=bool(knobs["gradient_as_bucket_view"]),
        static_graph=bool(knobs["static_graph"]),
    )
    return TorchJob(context, wrapped, device, optimizer_for(context, module), barrier=dist.barrier, leave=leave_group)


STRATEGY = Strategy(
    name="torch-ddp",
    family="data",
    framework="torch",
    synchronous=True,
    about="each worker holds the whole model; gradients are averaged by all-reduce",
    use_when="the model fits on one device and computation outweighs sending its gradients",
    footprint=footprint,
    open_job=open_job,
    knobs=KNOBS,
    precisions=torch_facts.PRECISIONS,
    executions=torch_facts.EXECUTIONS,
    is_out_of_memory=torch_facts.is_out_of_memory,
)
