"""Configurations of other trainers: each says what the run says, and refuses in words what it cannot."""

import json
import tomllib
from typing import Any

import pytest

from paceline.cli.recommend import recommend as command
from paceline.errors import SpecError
from paceline.layout import Layout
from paceline.predict.question import Question
from paceline.recommend.configs import configs, write_config
from paceline.spec import RunSpec
from paceline.systems.files import load_hardware

LAYOUT = "shard=8,tensor=8,pipeline=4"


def run(name: str = "torch-mesh", size: str = "70b", batch: int = 256, **knobs: Any) -> RunSpec:
    layouts = (Layout.from_text(str(knobs.pop("layout"))),) if "layout" in knobs else ()
    workers = layouts[0].workers if layouts else 8
    question = Question(
        load_hardware("h100-nvlink"), workload="llama", options={"size": size}, workers=(workers,), layouts=layouts,
        global_batches=(batch,),
    )  # fmt: skip
    return next(question.specs(name, knobs))


def parse_yaml(text: str) -> dict[str, Any]:
    """Two levels of plain values, which is all that is written."""
    values: dict[str, Any] = {}
    inner = values
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        name, _, value = line.strip().partition(":")
        target = inner if line.startswith("  ") else values
        if not value:
            inner = target[name] = {}
        else:
            target[name] = (
                json.loads(value) if value.strip()[0].isdigit() or value.strip() in ("true", "false") else value.strip()
            )
    return values


def test_torchtitan_gets_every_dimension_and_its_micro_batches() -> None:
    spec = run(layout=LAYOUT, microbatches=16, schedule="interleaved", stages_per_worker=2, recompute="full")
    values = tomllib.loads(write_config("torchtitan", spec, 32, "why"))
    assert values["model"]["flavor"] == "70B"
    assert values["parallelism"] == {
        "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": 8, "tensor_parallel_degree": 8,
        "context_parallel_degree": 1, "pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 2, "pipeline_parallel_layers_per_stage": 11,
    }  # fmt: skip
    training = values["training"]
    assert (training["local_batch_size"], training["global_batch_size"], training["seq_len"]) == (32, 256, 8192)
    assert values["activation_checkpoint"]["mode"] == "full"


def test_torchtitan_accumulates_what_the_local_batch_leaves_of_the_global_one() -> None:
    values = tomllib.loads(write_config("torchtitan", run("torch-fsdp", "8b", 64, accumulation=4), 1, "why"))
    assert values["training"]["local_batch_size"] == 2
    assert values["parallelism"]["data_parallel_shard_degree"] == 8


def test_accelerate_gets_fsdp_and_its_dimensions() -> None:
    values = parse_yaml(
        write_config("accelerate", run(layout="replicate=2,shard=8,tensor=4", recompute="full"), 8, "why")
    )
    assert (values["distributed_type"], values["num_processes"], values["num_machines"]) == ("FSDP", 64, 8)
    assert values["fsdp_config"]["fsdp_version"] == 2 and values["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert values["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8,
        "parallelism_config_tp_size": 4, "parallelism_config_cp_size": 1,
    }  # fmt: skip
    assert parse_yaml(write_config("accelerate", run("torch-ddp"), 1, "why"))["distributed_type"] == "MULTI_GPU"


def test_gradients_that_are_reduced_in_each_pass_and_shards_in_the_hosts_memory_are_said() -> None:
    spec = run("torch-fsdp", accumulation=4, reduce="each")
    text = write_config("accelerate", spec, 1, "why")
    assert "GradientAccumulationPlugin(num_steps=4, sync_each_batch=True)" in text
    assert parse_yaml(text)["fsdp_config"]["fsdp_reshard_after_forward"] is True
    offloaded = spec.model_copy(update={"offload": True})
    assert parse_yaml(write_config("accelerate", offloaded, 1, "why"))["fsdp_config"]["fsdp_offload_params"] is True
    assert tomllib.loads(write_config("torchtitan", offloaded, 1, "why"))["training"]["enable_cpu_offload"] is True
    zero = json.loads(write_config("deepspeed", offloaded, 1, "why"))["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"


def test_deepspeed_gets_its_stage_and_its_batch() -> None:
    values = json.loads(write_config("deepspeed", run("torch-fsdp", accumulation=4), 1, "why"))
    assert values["zero_optimization"]["stage"] == 3 and values["bf16"] == {"enabled": True}
    sizes = values["train_micro_batch_size_per_gpu"], values["gradient_accumulation_steps"], values["train_batch_size"]
    assert sizes == (8, 4, 256)
    assert json.loads(write_config("deepspeed", run("torch-ddp"), 1, "why"))["zero_optimization"]["stage"] == 0
    split = json.loads(write_config("deepspeed", run(layout="shard=8,tensor=4"), 4, "why"))
    assert split["tensor_parallel"] == {"autotp_size": 4}


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("accelerate", run(layout=LAYOUT), "no pipeline"),
        ("accelerate", run("torch-fsdp", recompute="selective"), "whole blocks or none"),
        ("deepspeed", run(layout=LAYOUT), "PipelineModule"),
        ("deepspeed", run(layout="replicate=2,shard=4"), "all data ranks at once"),
        ("torchtitan", run("torch-fsdp", "1b"), "models of its own catalogue"),
        ("torchtitan", run("torch-zero"), "has nothing like torch-zero"),
        ("deepspeed", run("torch-ddp", compression="powersgd"), "has nothing like torch-ddp with compression=powersgd"),
    ],
)
def test_what_cannot_be_expressed_is_refused_in_words(kind: str, spec: RunSpec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        write_config(kind, spec, 1, "why")


@pytest.mark.parametrize("kind", configs())
def test_the_best_that_can_be_expressed_is_emitted(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    command(workload="llama", option=["size=8b"], system="h100-nvlink", workers="8", strategy="torch-fsdp", emit=kind)
    assert len(capsys.readouterr().out.splitlines()) > 10


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SpecError, match="script, accelerate, deepspeed, torchtitan"):
        command(emit="megatron", system="8xh100-nvlink")
