"""A configuration of DeepSpeed (JSON) for `deepspeed.initialize(config=...)`: ZeRO stages, AutoTP, precision, batch."""

import json
from typing import Any

from paceline.recommend.configs.base import Config, Division

# Everything is divided, or nothing.
ALL, NOTHING = 3, 0


def why_not(division: Division) -> str | None:
    """What is code in DeepSpeed, or not there."""
    layout, spec = division.layout, division.spec
    if layout.pipeline > 1:
        return "its pipelines are written in code (PipelineModule), not configured; use a layout without pipeline"
    if layout.replicate > 1 and layout.shard > 1:
        return "ZeRO divides over all data ranks at once; use shard for all of them"
    if layout.context > 1 or layout.expert > 1:
        return "sequences and experts are divided in code, not configured; use a layout without context and expert"
    if spec.precision == "bf16-pure":
        return "it keeps master weights in single precision; use bf16"
    if spec.recompute == "selective":
        return "it recomputes what the model wraps in its checkpoint function; use --recompute full or none"
    return None


def write(division: Division) -> str:
    """The file."""
    spec, layout = division.spec, division.layout
    settings = spec.optimizer
    values: dict[str, Any] = {
        "train_batch_size": spec.samples_per_step,
        "train_micro_batch_size_per_gpu": division.microbatch,
        "gradient_accumulation_steps": division.accumulation,
        "zero_optimization": {"stage": ALL if layout.shard > 1 else NOTHING, "overlap_comm": True},
        "bf16": {"enabled": spec.precision == "bf16"},
        "fp16": {"enabled": spec.precision == "fp16"},
    }
    if spec.offload:
        on_host = {"device": "cpu", "pin_memory": True}
        values["zero_optimization"] |= {"offload_param": on_host, "offload_optimizer": on_host}
    if settings.update_name == "adam":
        values["optimizer"] = {
            "type": "AdamW",
            "params": {"lr": settings.lr, "betas": list(settings.betas), "eps": settings.eps,
                       "weight_decay": settings.weight_decay},
        }  # fmt: skip
        if settings.name == "adam" and settings.weight_decay:
            values["optimizer"] |= {"type": "Adam"}
            values["optimizer"]["params"]["adam_w_mode"] = False
    if spec.clip is not None:
        values["gradient_clipping"] = spec.clip
    if layout.tensor > 1:
        values["tensor_parallel"] = {"autotp_size": layout.tensor}
    if spec.recompute == "full":
        values["activation_checkpointing"] = {"partition_activations": layout.tensor > 1, "cpu_checkpointing": False}
    return json.dumps(values, indent=2) + "\n"


CONFIG = Config("deepspeed", "a configuration of DeepSpeed (JSON)", why_not, write)
