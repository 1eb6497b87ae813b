"""ZeRO stage 1: every worker holds the model, but the optimizer state of its part of the parameters only.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020. PyTorch's
`ZeroRedundancyOptimizer` gives each parameter whole to one worker, which updates it and broadcasts it.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy
from paceline.contract.traits import Peaks, Traits
from paceline.costs.footprint import Footprint, ModelFacts, in_groups, optimizer_bytes, trainer
from paceline.costs.layout_memory import whole_model_peaks
from paceline.costs.messages import Message, all_reduce
from paceline.costs.precision import autocast_numbers, parameter_width
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.costs.torch import broadcast, greedy_partition
from paceline.frameworks.torch import declared
from paceline.spec import RunSpec
from paceline.systems import System

# DistributedDataParallel's own buckets; those of the first step may still be there when it has regrouped them.
BUCKET_SETS = 2
BUCKETS = {"piece_bytes": 25 * (1 << 20), "first_piece_bytes": 1 << 20}

# Beyond so many workers all send what one in the middle does: who sends how often then hardly differs.
MOST_TOLD_APART = 64


def check(spec: RunSpec, system: System) -> str | None:
    """L-BFGS weighs all gradients against each other."""
    if spec.optimizer.name == "lbfgs":
        return "torch-zero divides the optimizer by parameters and L-BFGS needs all of them at once; use another"
    return declared.check_step(spec, system)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Data parallel, after which each worker's updated parameters go to all others."""
    workers, parts = spec.workers, greedy_partition(model, spec.workers)
    width = parameter_width(spec)
    held = [sum(array.size for array in part) for part in parts]
    by_place = [broadcast(spec, "parameters", 1, workers, place) for place in range(workers)]
    folded = _broadcasts(held, workers // 2, by_place, width) if workers > MOST_TOLD_APART else ()
    averages = all_reduce("gradients", model.parameters * width, workers, phase="backward", hidden=True, **BUCKETS)
    local = spec.samples_per_step // spec.workers
    kept = activation_bytes(model, spec.recompute, local / spec.accumulation, numbers=autocast_numbers(spec))
    usual = trainer(spec, model, ranks=1, flops=step_flops(model, spec.recompute, local), activation_bytes=kept)
    return in_groups(
        replace(
            usual,
            messages=(*averages, *(folded or _broadcasts(held, rank, by_place, width))),
            optimizer_bytes=optimizer_bytes(spec.optimizer, held[rank], len(parts[rank]), width),
        )
        for rank in range(workers)
    )


def _broadcasts(held: list[int], rank: int, by_place: list[tuple[Message, ...]], size: int) -> tuple[Message, ...]:
    """Every part goes from its owner to all; those in which this rank sends and receives as much are one entry."""
    alike: Counter[tuple[int, float, float]] = Counter()
    for root, numbers in enumerate(held):
        for array in by_place[rank - root] if numbers else ():
            alike[numbers, array.sent_bytes, array.received_bytes] += 1
    return tuple(
        Message("parameters", "broadcast", n * size, sent * n * size, received * n * size, count, ranks=len(held))
        for (n, sent, received), count in alike.items()
    )


def open_job(context: Context) -> Job:
    """DDP with a divided optimizer."""
    from torch.nn.parallel import DistributedDataParallel

    from paceline.frameworks.torch.gradients.compression import make_contiguous
    from paceline.frameworks.torch.gradients.noise import with_noise
    from paceline.frameworks.torch.group import join_group
    from paceline.frameworks.torch.precision import compute_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.sharded import DividedOptimizerJob, shard_state
    from paceline.frameworks.torch.training import build, optimizer_for, torch_device

    device, knobs = torch_device(context), STRATEGY.knob_values(context.spec)
    in_buckets = bool(knobs["parameters_as_bucket_view"])
    join_group(context)
    module = build(context, device)
    compute_in_half(context.spec, module)
    recompute(context, module)
    if in_buckets:
        make_contiguous(module)
    wrapped = DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=bool(knobs["find_unused_parameters"]),
    )
    optimizer = shard_state(optimizer_for(context, module), in_buckets)
    return with_noise(DividedOptimizerJob, context.spec.noise_scale)(context, wrapped, device, optimizer)


STRATEGY = Strategy(
    name="torch-zero",
    family="data",
    framework="torch",
    about="data parallel with the optimizer state divided over the workers (ZeRO stage 1)",
    use_when="the model fits on one device but not together with its optimizer state",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("parameters_as_bucket_view", True, "a worker's parameters lie in one buffer and travel in one broadcast"),
        Knob("find_unused_parameters", False, "for a model of which a step may leave out some parameters"),
    ),
    needs=replace(declared.NEEDS, heeds=declared.STEP_FIELDS | declared.EQUAL_FIELDS | {"noise_scale"}, check=check),
    traits=Traits(
        saved_by="optimizer_parts",
        peaks=Peaks(partial(whole_model_peaks, buckets=BUCKET_SETS)),
        timed_on=("mlp",),
        calibrated_like=("torch-ddp", "torch-fsdp"),
    ),
)
