"""A configuration of Hugging Face Accelerate (YAML) for `accelerate launch --config_file`: FSDP2 and its dimensions."""

from typing import Any

from paceline.recommend.configs.base import Config, Division

# Of Accelerate's `mixed_precision`.
PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no"}


def why_not(division: Division) -> str | None:
    """What Accelerate's `ParallelismConfig` has no size for."""
    layout, spec = division.layout, division.spec
    if layout.pipeline > 1:
        return "its configurations have no pipeline; use a layout without one, or --emit torchtitan"
    if layout.expert > 1:
        return "its configurations do not deal experts; use a layout without expert"
    if spec.precision not in PRECISIONS:
        return f"it has no precision {spec.precision}; use bf16"
    if spec.recompute == "selective":
        return "it recomputes whole blocks or none of them; use --recompute full or none"
    if layout.replicate > 1 and layout.shard == 1 and layout.tensor * layout.context > 1:
        return "it does not split layers or sequences of plain copies; use shard in place of replicate"
    return None


def write(division: Division) -> str:
    """The file; the model's own script says what is trained, and on which batch."""
    spec, layout = division.spec, division.layout
    sharded = layout.shard > 1 or layout.tensor > 1 or layout.context > 1
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if layout.workers > 1 else "NO",
        "mixed_precision": PRECISIONS[spec.precision],
        "num_machines": division.nodes,
        "num_processes": layout.workers,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static" if division.nodes == 1 else "c10d",
    }
    if sharded:
        values["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            # Between the passes of a step parameters stay gathered, unless each reduces its gradients.
            "fsdp_reshard_after_forward": division.accumulation == 1 or division.reduces_each,
            "fsdp_activation_checkpointing": spec.recompute == "full",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_offload_params": spec.offload,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        values["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": layout.replicate,
            "parallelism_config_dp_shard_size": layout.shard,
            "parallelism_config_tp_size": layout.tensor,
            "parallelism_config_cp_size": layout.context,
        }
    passes = f"gradient_accumulation_steps={division.accumulation}"
    if division.reduces_each and division.accumulation > 1:
        steps = f"num_steps={division.accumulation}"
        passes = f"gradient_accumulation_plugin=GradientAccumulationPlugin({steps}, sync_each_batch=True)"
    head = (
        f"# {division.why}\n"
        f"# In the script: Accelerator({passes}), and a batch of "
        f"{division.microbatch} for each data rank.\n"
    )
    return head + _yaml(values)


def _yaml(values: dict[str, Any], indent: str = "") -> str:
    """Nested tables of plain values."""
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        else:
            text = str(value).lower() if isinstance(value, bool) else f"'{value}'" if value in ("no", "NO") else value
            lines.append(f"{indent}{name}: {text}\n")
    return "".join(lines)


CONFIG = Config("accelerate", "a launch configuration of Hugging Face Accelerate (YAML)", why_not, write)
