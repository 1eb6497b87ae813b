"""PyTorch DistributedDataParallel: every worker holds the model and averages gradients by all-reduce.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020. Gradients are sent in
buckets while the backward pass still runs. PowerSGD: Vogels et al., NeurIPS 2019.
"""

import os
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy
from paceline.contract.traits import Peaks, Search, Traits, batch_parts
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, trainer
from paceline.costs.layout_memory import whole_model_peaks
from paceline.costs.messages import Message, all_reduce
from paceline.costs.precision import HALF_BYTES, autocast_numbers, parameter_width, reduction_width
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.costs.torch import Array, arrays_of
from paceline.frameworks.torch import declared
from paceline.layout import Layout
from paceline.spec import RunSpec
from paceline.systems import System

DEFAULT_BUCKET_MB = 25.0
MEBIBYTE = 1 << 20
# DDP regroups its buckets after the first step, and PowerSGD must not have remembered anything before.
POWERSGD_FULL_STEPS = 2
# When DDP regroups its buckets, NCCL's watchdog holds on to the first ones until it next looks.
BUCKET_SETS = 2
# PyTorch's default: a matrix whose factors are not this much smaller is sent whole.
POWERSGD_LEAST_GAIN = 2
# How far the losses of 20 steps may stray from those of exact gradients. Half precision rounds each gradient by up to
# 2^-11 (fp16) or 2^-8 (bf16) of its size; PowerSGD leaves out what its rank cannot hold and adds it in later steps.
TOLERANCES = {"none": 1e-4, "fp16": 2e-3, "bf16": 5e-3, "powersgd": 0.3}


def check(spec: RunSpec, system: System) -> str | None:
    """Knobs that do not fit the batch or the backend."""
    knobs = STRATEGY.knob_values(spec)
    if min(float(knobs[name]) for name in ("bucket_mb", "powersgd_rank")) <= 0:
        return "bucket_mb and powersgd_rank of torch-ddp must be more than 0"
    if knobs["static_graph"] and spec.accumulation > 1:
        return "static_graph does not go with accumulation: DDP fails when its first backward pass is not synchronised"
    if spec.device == "cpu" and knobs["algorithm"] != "auto":
        return "algorithm chooses among those of NCCL, and gloo on CPU has only its ring; leave it out or use cuda"
    return _why_not_sent(spec, knobs) or declared.check_step(spec, system)


def _why_not_sent(spec: RunSpec, knobs: dict[str, Any]) -> str | None:
    if "graph" in spec.execution and (knobs["compression"] != "none" or spec.reduction is not None):
        return f"execution {spec.execution} cannot record gradients that are cast or compressed; use execution eager"
    if spec.noise_scale and knobs["compression"] != "none":
        return "noise_scale of torch-ddp looks at gradients as they are; leave compression out"
    if spec.reduction is not None and knobs["compression"] != "none":
        return (
            f"reduction {spec.reduction} and compression {knobs['compression']} both say how gradients are sent; "
            f"leave one of them out"
        )
    if knobs["compression"] == "powersgd" and spec.checkpoint_every is not None:
        return (
            "torch-ddp cannot save with checkpoint_every what PowerSGD left out of earlier steps and adds later; "
            "leave it out, or use another compression"
        )
    if knobs["compression"] == "powersgd" and spec.precision == "bf16-pure":
        return "PowerSGD factors gradients in single precision; use precision bf16, or another compression"
    return None


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """Everything is on every worker; the gradients go around once."""
    size, knobs = model.parameters * parameter_width(spec), STRATEGY.knob_values(spec)
    beside, messages = _sending(spec, model, knobs)
    local = spec.samples_per_step // spec.workers
    worker = trainer(
        spec,
        model,
        messages,
        gradient_bytes=(size if knobs["gradient_as_bucket_view"] else 2 * size) + beside,
        flops=step_flops(model, spec.recompute, local),
        activation_bytes=activation_bytes(
            model, spec.recompute, local / spec.accumulation, numbers=autocast_numbers(spec)
        ),
    )
    return Footprint((worker,))


def _sending(spec: RunSpec, model: ModelFacts, knobs: dict[str, Any]) -> tuple[float, tuple[Message, ...]]:
    """Bytes that the compression holds beside the gradients, and what it sends."""
    size, workers = model.parameter_bytes, spec.workers
    first, most = _piece_bytes(knobs)
    when = {"phase": "backward", "hidden": True, "piece_bytes": most, "first_piece_bytes": first}
    if knobs["compression"] == "none":
        sent = model.parameters * reduction_width(spec)
        # Buckets that are cast are there beside the gradients.
        beside = 0 if reduction_width(spec) == parameter_width(spec) else sent
        return beside, all_reduce("gradients", sent, workers, **when)
    if knobs["compression"] != "powersgd":
        half = model.parameters * HALF_BYTES
        return half, all_reduce("gradients", half, workers, **when)
    rank = int(knobs["powersgd_rank"])
    matrices = [array for array in arrays_of(model.layers) if _is_worth_factors(array, rank)]
    left, right = (
        sum(getattr(matrix, side) * min(matrix.rows, matrix.row, rank) for matrix in matrices) * FLOAT_BYTES
        for side in ("rows", "row")
    )
    whole = size - sum(matrix.size for matrix in matrices) * FLOAT_BYTES
    if spec.device == "cpu":
        # One bucket for the whole model (`_bucket_mb`), which the end of the backward pass fills.
        when |= {"piece_bytes": None, "first_piece_bytes": None}
    messages = [
        all_reduce(name, payload, workers, **when)
        for name, payload in (("small gradients", whole), ("left factors", left), ("right factors", right))
    ]
    # The error that is added in the next step, and a copy of the gradients to find it.
    return 2 * size + left + right, tuple(message for sent in messages for message in sent)


def _piece_bytes(knobs: dict[str, Any]) -> tuple[float, float]:
    """Most bytes of the first bucket and of the others: PyTorch's own first one is small, to start early."""
    most = float(knobs["bucket_mb"]) * MEBIBYTE
    return (MEBIBYTE if knobs["bucket_mb"] == DEFAULT_BUCKET_MB else most), most


def _is_worth_factors(array: Array, rank: int) -> bool:
    factors = (array.rows + array.row) * min(array.rows, array.row, rank)
    return factors * POWERSGD_LEAST_GAIN < array.size


def open_job(context: Context) -> Job:
    """Wraps the module; the loop is the same as for one worker."""
    from torch.nn.parallel import DistributedDataParallel

    from paceline.frameworks.torch.cuda_graph import GraphedJob, recording_stream
    from paceline.frameworks.torch.gradients.compression import DataParallelJob, compress_gradients, make_contiguous
    from paceline.frameworks.torch.gradients.noise import with_noise
    from paceline.frameworks.torch.group import join_group
    from paceline.frameworks.torch.precision import compute_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.training import build, optimizer_for, torch_device

    device, knobs = torch_device(context), STRATEGY.knob_values(context.spec)
    if knobs["algorithm"] != "auto":
        os.environ["NCCL_ALGO"] = f"allreduce:{knobs['algorithm']}"
    join_group(context)
    module = build(context, device)
    compute_in_half(context.spec, module)
    recompute(context, module)
    compression = sent_as(context.spec, knobs)
    if compression == "powersgd":
        make_contiguous(module)
    graphed = "graph" in context.spec.execution
    if context.spec.execution == "compiled+graph":
        # Compiled around DDP, as an eager step is, a recorded step was slower than without compiling: 505,000 against
        # 533,000 images/s of the small CNN on two slices of an H200, and 836,000 compiled within it (PyTorch 2.11).
        module.compile()
    with recording_stream(graphed):
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=_bucket_mb(context.spec, knobs, module),
            gradient_as_bucket_view=bool(knobs["gradient_as_bucket_view"]),
            static_graph=bool(knobs["static_graph"]),
            find_unused_parameters=bool(knobs["find_unused_parameters"]),
        )
    if compression != "none":
        compress_gradients(wrapped, compression, int(knobs["powersgd_rank"]), POWERSGD_FULL_STEPS)
    job = with_noise(DataParallelJob, context.spec.noise_scale)(
        context,
        wrapped,
        device,
        optimizer_for(context, module),
        compiled=context.spec.execution == "compiled",
    )
    return GraphedJob(job) if graphed else job


def sent_as(spec: RunSpec, knobs: dict[str, Any]) -> str:
    """The form in which gradients are sent: that of the compression, or the reduction's precision where it differs."""
    as_held = spec.reduction is None or reduction_width(spec) == parameter_width(spec)
    return str(knobs["compression"]) if as_held else str(spec.reduction)


def _bucket_mb(spec: RunSpec, knobs: dict[str, Any], module: Any) -> float | None:
    """None is PyTorch's own choice, whose first bucket is small so that sending starts early."""
    if knobs["compression"] == "powersgd" and spec.device == "cpu":
        # PowerSGD sends thrice per bucket, one after another; gloo aborts when those of two buckets cross.
        return 1 + sum(float(parameter.nbytes) for parameter in module.parameters()) / MEBIBYTE
    return None if knobs["bucket_mb"] == DEFAULT_BUCKET_MB else float(knobs["bucket_mb"])


STRATEGY: Strategy = Strategy(
    name="torch-ddp",
    family="data",
    framework="torch",
    about="each worker holds the whole model; gradients are averaged by all-reduce",
    use_when="the model fits on one device and computation outweighs sending its gradients",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("bucket_mb", DEFAULT_BUCKET_MB, "size of a gradient bucket in MiB; PyTorch's default is 25, the first 1"),
        Knob("gradient_as_bucket_view", True, "gradients live inside the buckets: saves a copy and their memory"),
        Knob("static_graph", False, "promise that the same parameters are used in each step"),
        Knob("find_unused_parameters", False, "for a model of which a step may leave out some parameters"),
        Knob("compression", "none", "how gradients are made smaller before they are sent", tuple(TOLERANCES)),
        Knob("powersgd_rank", 4, "rank of the factors that PowerSGD sends in place of a gradient"),
        Knob("algorithm", "auto", "all-reduce algorithm of NCCL; gloo has just one", ("auto", "ring", "tree")),
    ),
    needs=replace(
        declared.NEEDS,
        executions=declared.GRAPH_EXECUTIONS,
        heeds=declared.STEP_FIELDS | declared.EQUAL_FIELDS | {"reduction", "noise_scale"},
        check=check,
        membership="agents",
    ),
    traits=Traits(
        peaks=Peaks(partial(whole_model_peaks, buckets=BUCKET_SETS)),
        collective_algorithm=lambda spec: str(STRATEGY.knob_values(spec)["algorithm"]),
        searched=(Search("accumulation", batch_parts),),
        timed_on=("mlp",),
        calibrated_like=("torch-zero", "torch-fsdp"),
        layout=lambda spec: Layout(replicate=spec.workers),
        usual_on_several_devices=True,
    ),
)
