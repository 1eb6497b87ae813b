"""torchtitan's job configuration (TOML), as its 0.2 reads it: `torchtitan/config/job_config.py`.

It trains models of its own catalogue, of which Llama 3 is here.
"""

from typing import Any

from paceline.recommend.configs.base import Config, Division
from paceline.systems.files import to_toml

# Sizes of workload llama and torchtitan's names of them.
FLAVORS = {"8b": "8B", "70b": "70B", "405b": "405B"}
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble",
             "interleaved-zero-bubble": "InterleavedZeroBubble", "dualpipev": "DualPipeV"}  # fmt: skip
# What `complete` leaves in a Llama that is as it was published.
MODEL_OPTIONS = {"size", "sequence"}
CHECKPOINTING = {"none": "none", "selective": "selective", "full": "full"}
STEPS = 1000


def why_not(division: Division) -> str | None:
    """Only Llama 3 as published, in bf16 or fp32."""
    spec = division.spec
    size = str(spec.options.get("size", ""))
    if spec.workload != "llama" or size not in FLAVORS or set(spec.options) - MODEL_OPTIONS:
        return (
            f"it trains models of its own catalogue, of which {', '.join(f'llama {each}' for each in FLAVORS)} are here"
        )
    if spec.precision not in ("bf16", "fp32", "tf32"):
        return f"it does not train in {spec.precision}; use bf16"
    settings = spec.optimizer
    if settings.update_name != "adam" or (settings.name == "adam" and settings.weight_decay):
        return f"it trains with AdamW, and the run with {settings.name}; use optimizer adamw"
    return None


def write(division: Division) -> str:
    """The file; what it does not say is torchtitan's default."""
    spec, layout = division.spec, division.layout
    flavor = FLAVORS[str(spec.options["size"])]
    assert spec.input_shape is not None
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.replicate,
        "data_parallel_shard_degree": layout.shard,
        "tensor_parallel_degree": layout.tensor,
        "context_parallel_degree": layout.context,
        "pipeline_parallel_degree": layout.pipeline,
    }
    if layout.pipeline > 1:
        parallelism |= {
            "pipeline_parallel_schedule": SCHEDULES[division.schedule],
            "pipeline_parallel_microbatch_size": division.microbatch,
        }
        if division.stages_per_worker > 1:
            depth = int(spec.options.get("depth", 0)) or _depth(str(spec.options["size"]))
            stages = layout.pipeline * division.stages_per_worker
            # The first and the last stage count for a layer more each: embedding and head.
            parallelism["pipeline_parallel_layers_per_stage"] = -(-(depth + 2) // stages)
    values = {
        "job": {"dump_folder": "./outputs", "description": division.why},
        "model": {"name": "llama3", "flavor": flavor, "hf_assets_path": f"./assets/hf/Llama-3.1-{flavor}"},
        "optimizer": {"name": "AdamW", "lr": spec.optimizer.lr, "eps": spec.optimizer.eps,
                      "weight_decay": spec.optimizer.weight_decay},
        "training": {
            "local_batch_size": division.microbatch * division.microbatches,
            "global_batch_size": spec.samples_per_step,
            "seq_len": spec.input_shape[0],
            "max_norm": spec.clip or 1.0,
            "steps": STEPS,
            "dataset": "c4",
            "mixed_precision_param": "bfloat16" if spec.precision == "bf16" else "float32",
            "mixed_precision_reduce": "float32",
            "enable_cpu_offload": spec.offload,
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": CHECKPOINTING[spec.recompute]},
        "compile": {"enable": spec.execution == "compiled"},
    }  # fmt: skip
    each = layout.workers // division.nodes
    launch = f"# {division.nodes} nodes, {each} processes on each; CONFIG_FILE=this ./run_train.sh\n"
    return launch + to_toml(values)


def _depth(size: str) -> int:
    from paceline.workloads.llama import SIZES

    return SIZES[size]["depth"]


CONFIG = Config("torchtitan", "a job of torchtitan (TOML)", why_not, write)
