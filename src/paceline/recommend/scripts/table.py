"""Every script that can be written: an entry here and a template of the same name each."""

from collections.abc import Mapping
from typing import Any

from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.layout import call
from paceline.recommend.scripts.torch_mesh import mesh_notes, mesh_values
from paceline.recommend.scripts.torch_parts import pipeline_values, tensor_values
from paceline.recommend.scripts.torch_text import alone, on_several_machines, optimizer_call, optimizer_text, torchrun


def _zero_values(source: Source) -> Mapping[str, Any]:
    """ZeRO's optimizer wrapper takes the optimizer's class rather than an instance."""
    kind, options = optimizer_call(source.spec.optimizer, fused=True)
    bucket = f"parameters_as_bucket_view={source.knobs['parameters_as_bucket_view']}"
    settings = ["parameters", f"optimizer_class=torch.optim.{kind}", bucket, *options]
    # In one buffer parameters must have their plain order.
    optimizer = call("return ZeroRedundancyOptimizer(", settings, indent=4)
    return {"called": "wrapped", "optimizer": optimizer, "channels_last": False}


def _fsdp_values(source: Source) -> Mapping[str, Any]:
    """The fused form of SGD does not know divided tensors, and FSDP wants those in their plain order."""
    optimizer = optimizer_text(source.spec.optimizer, "parameters", fused=False)
    # FSDP casts by itself, in the place of autocast.
    return {"optimizer": optimizer, "channels_last": False, "is_bf16": False, "casts": source.spec.precision == "bf16"}


_ALL = (
    Script(
        "jax-data",
        "JAX with the batch divided over {workers} devices (GPUs, or parts of the CPU where there are not as many) "
        "and the parameters on each of them",
    ),
    Script(
        "jax-fsdp",
        "JAX with the batch, the parameters and the optimizer state divided over {workers} devices (GPUs, or parts "
        "of the CPU where there are not as many)",
    ),
    Script("jax-single", "JAX on one device, the step compiled by XLA"),
    Script(
        "tf-mirrored",
        "TensorFlow's MirroredStrategy: one process, a copy of the model on each of {workers} devices (GPUs, or "
        "parts of the CPU where there are not as many)",
    ),
    Script(
        "tf-multiworker",
        "TensorFlow's MultiWorkerMirroredStrategy: {workers} processes, a copy of the model in each",
        knobs=("communication",),
        notes=lambda _spec: (
            "That starts all of them on this machine. On several machines, set TF_CONFIG on each as TensorFlow "
            "describes it and give the same command there: the script is then one worker."
        ),
    ),
    Script("tf-single", "TensorFlow on one device, the step as a traced function"),
    Script(
        "torch-ddp",
        "PyTorch DistributedDataParallel, the whole model on each of {workers} workers",
        start=torchrun,
        knobs=("bucket_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters", "accumulation"),
        values=lambda _source: {"called": "wrapped"},
        notes=on_several_machines,
    ),
    Script(
        "torch-fsdp",
        "PyTorch FSDP2: parameters, gradients and optimizer state are divided over {workers} workers",
        start=torchrun,
        knobs=("wrap", "reshard_after_forward", "hsdp_replicas"),
        executions=("eager",),
        values=_fsdp_values,
        notes=on_several_machines,
    ),
    Script(
        "torch-mesh",
        "PyTorch with {workers} workers as one mesh: stages of a pipeline, copies, shards (FSDP2) and split layers "
        "(tensor and sequence parallelism), as the layout says",
        start=torchrun,
        knobs=(
            "layout",
            "accumulation",
            "recompute",
            "clip",
            "schedule",
            "microbatches",
            "stages_per_worker",
            "reduce",
        ),
        values=mesh_values,
        tests=False,
        notes=mesh_notes,
    ),
    Script(
        "torch-pipeline",
        "PyTorch pipeline parallelism: each of {workers} workers holds a stretch of the layers, and micro-batches "
        "keep all of them busy",
        start=torchrun,
        knobs=("schedule", "microbatches", "stages_per_worker"),
        precisions=("fp32", "tf32"),
        values=pipeline_values,
        tests=False,
        notes=lambda _spec: "It tells the loss of training; the checkpoint is that of the whole model.",
    ),
    Script("torch-single", "PyTorch on one device", start=alone),
    Script(
        "torch-tensor",
        "PyTorch tensor parallelism: dense layers and attention heads are split over {workers} workers by DTensor, "
        "which does not know convolutions, so that those stay whole on every worker",
        start=torchrun,
        knobs=("convolutions",),
        precisions=("fp32", "tf32"),
        values=tensor_values,
        notes=lambda _spec: "The workers exchange activations in every layer: keep them on one machine.",
    ),
    Script(
        "torch-zero",
        "PyTorch DistributedDataParallel with the optimizer state divided over {workers} workers (ZeRO stage 1)",
        start=torchrun,
        knobs=("parameters_as_bucket_view", "find_unused_parameters"),
        values=_zero_values,
        notes=on_several_machines,
    ),
)
SCRIPTS = {script.name: script for script in _ALL}
