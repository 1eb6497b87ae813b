"""Transformers of the user's that say nothing of how to cut them: blocks are found, stages cut, layers split by name.

Held to one worker with SGD and momentum, because Adam hides a factor in the gradients.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.plan import PlannedRun, complete, refusal
from paceline.runs.launch import launch
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

MODELS = Path(__file__).with_name("own_models")
FILES = {"hf_llama": "llamas.py", "torchtitan": "llamas.py", "timm_vit": "vits.py",
         "torch_encoder": "encoders.py"}  # fmt: skip
TEXT = {"dataset": "tokens", "input_shape": [16], "classes": 32}
IMAGES = {"dataset": "synthetic", "input_shape": [3, 8, 8], "classes": 10}
TOLERANCE = 1e-4


def spec_of(model: str, **fields: Any) -> RunSpec:
    file = MODELS / FILES.get(model, "gpts.py")
    usual = {"model": ModelFile.from_text(f"{file}:{model}"), "global_batch": 16, "train_samples": 64, "steps": 4,
             "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}  # fmt: skip
    usual |= IMAGES if model == "timm_vit" else TEXT
    usual |= {} if "layout" in fields else {"workers": 2}
    return complete(RunSpec.parse({**usual, **fields}, "own"))


def on(model: str, soak: bool = True, **fields: Any) -> Any:
    words = [model, *(f"{name} {value}" for name, value in fields.items())]
    return pytest.param(model, fields, id=" ".join(words), marks=[pytest.mark.soak] if soak else [])


STYLES = ("nanogpt", "hf_gpt2", "hf_llama", "torchtitan", "timm_vit", "torch_encoder")
EVERYTHING = {"recompute": "full", "accumulation": 2, "clip": 0.2}
RUNS = [
    on("hf_llama", soak=False, strategy="torch-mesh", layout="shard=2", recompute="full", clip=0.2),
    on("nanogpt", soak=False, strategy="torch-tensor"),
    on("timm_vit", soak=False, strategy="torch-pipeline"),
    *(on(model, strategy="torch-fsdp", recompute="full") for model in (*STYLES, "tied")),
    *(on(model, strategy="torch-mesh", layout="replicate=2", recompute="selective") for model in STYLES),
    *(on(model, strategy="torch-tensor") for model in (*STYLES, "tied", "per_head_norm")),
    *(on(model, strategy="torch-mesh", layout="shard=2,tensor=2") for model in (*STYLES, "tied", "per_head_norm")),
    *(
        on(model, strategy="torch-mesh", layout="shard=2,tensor=2", execution="compiled", recompute="full")
        for model in (*STYLES, "tied", "per_head_norm")
    ),
    *(on(model, strategy="torch-pipeline") for model in (*STYLES, "tied")),
    on("tied", strategy="torch-pipeline", knobs={"schedule": "interleaved"}),
    on("tied", strategy="torch-layers", workers=4),
    *(on(model, strategy="torch-mesh", layout="tensor=2", **EVERYTHING) for model in (*STYLES, "tied")),
    *(on(model, strategy="torch-mesh", layout="pipeline=2", **EVERYTHING) for model in STYLES),
    *(on(model, strategy="torch-mesh", layout="tensor=2,pipeline=2") for model in ("nanogpt", "hf_gpt2", "timm_vit")),
    on("tied", soak=False, strategy="torch-mesh", layout="pipeline=2", clip=0.2),
    on("tied", strategy="torch-mesh", layout="pipeline=2", knobs={"schedule": "zbv"}, **EVERYTHING),
    on("tied", strategy="torch-mesh", layout="shard=2,pipeline=2", **EVERYTHING),
    on("tied", strategy="torch-mesh", layout="tensor=2,pipeline=2", clip=0.2),
    on("tied", strategy="torch-mesh", layout="replicate=2,pipeline=2"),
    on("torchtitan", strategy="torch-mesh", layout="shard=2,tensor=2", **EVERYTHING),
    on("hf_llama", strategy="torch-mesh", layout="replicate=2,tensor=2", **EVERYTHING),
    on("hf_llama", strategy="torch-mesh", layout="shard=2,tensor=2,pipeline=2", clip=0.2, recompute="full"),
    on("torchtitan", strategy="torch-mesh", layout="shard=2,pipeline=2", knobs={"schedule": "zbv"}),
    on("hf_llama", strategy="torch-pipeline", knobs={"schedule": "interleaved"}),
    on("nanogpt", strategy="torch-layers"),
    on("hf_gpt2", strategy="torch-mesh", layout="replicate=2,pipeline=2"),
]


@pytest.mark.parametrize(("model", "fields"), RUNS)
def test_it_trains_as_one_worker_does(model: str, fields: dict[str, Any], trained: Any) -> None:
    spec = spec_of(model, **fields)
    assert refusal(spec, local_system(), probe) is None
    spread, single = trained.again(spec), trained.again(strategy(spec.strategy).testing.reference(spec))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=TOLERANCE)
    assert spread.weights.keys() == single.weights.keys()
    for name, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=TOLERANCE, err_msg=name)
    assert spread.record.epochs[-1].test_loss == pytest.approx(single.record.epochs[-1].test_loss, rel=TOLERANCE)
    assert spread.record.ranks[0].details["blocks"].startswith("4 ")


def test_a_record_says_what_was_split_and_workers_hold_a_part(trained: Any) -> None:
    record = trained.again(spec_of("nanogpt", strategy="torch-tensor")).record
    assert record.ranks[0].details["blocks"] == "4 GPTBlock in transformer.h"
    assert record.ranks[0].details["guessed_plan"] == {
        "transformer.h.*.attn.c_attn": "columns", "transformer.h.*.attn.c_proj": "rows",
        "transformer.h.*.mlp.c_fc": "columns", "transformer.h.*.mlp.c_proj": "rows",
    }  # fmt: skip
    for rank in record.ranks:
        assert rank.details["held_bytes"]["parameters"] < 0.6 * 4 * record.parameters
        assert rank.details["replicated_drift"] == 0.0


SPLIT = [
    on("hf_llama", soak=False, strategy="torch-mesh", layout="tensor=2", recompute="full"),
    *(on(model, strategy="torch-tensor") for model in (*STYLES, "tied", "per_head_norm")),
    *(on(model, strategy="torch-mesh", layout="tensor=2") for model in (*STYLES, "tied", "per_head_norm")),
    *(on(model, strategy="torch-mesh", layout="tensor=2", recompute="full") for model in ("nanogpt", "per_head_norm")),
    on("nanogpt", strategy="torch-mesh", layout="tensor=2", recompute="full", accumulation=2),
]


@pytest.mark.parametrize(("model", "fields"), SPLIT)
def test_a_split_model_sends_and_holds_what_its_footprint_says(
    model: str, fields: dict[str, Any], trained: Any
) -> None:
    spec = spec_of(model, **fields, instrumented=True)
    facts = probe(spec).model
    assert facts is not None
    (group,) = strategy(spec.strategy).footprint(spec, facts).groups
    record = trained.again(spec).record
    sent = sum(message.sent_bytes * message.count for message in group.messages)
    assert [part.sent_bytes for part in record.breakdown] == [sent, sent]
    assert [rank.details["held_bytes"]["parameters"] for rank in record.ranks] == [group.parameter_bytes] * 2


def test_a_record_says_which_blocks_a_stage_has(trained: Any) -> None:
    record = trained.again(spec_of("timm_vit", strategy="torch-pipeline")).record
    assert [rank.details["layers"] for rank in record.ranks] == [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"]]
    assert sum(rank.details["held_bytes"]["parameters"] for rank in record.ranks) == 4 * record.parameters


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "secret_heads",
        {"strategy": "torch-tensor"},
        "split over 2 workers in the usual ways, do not give what they give",
    ),
    ("secret_heads", {"strategy": "torch-mesh", "layout": "tensor=2"}, "add a function plan to gpts.py"),
    ("shared_norm", {"strategy": "torch-pipeline"}, "transformer.h.0.ln_1.weight is used in several places of it"),
    ("remembering", {"strategy": "torch-mesh", "layout": "pipeline=2"}, "is used again behind it"),
    ("peeking", {"strategy": "torch-layers"}, "its code looks at the numbers in its inputs outside of the blocks"),
]


@pytest.mark.parametrize(("model", "fields", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_cannot_be_found_is_refused_in_words(model: str, fields: dict[str, Any], words: str) -> None:
    reason = str(refusal(spec_of(model, **fields), local_system(), probe))
    assert words in reason
    assert "add a function" in reason


@pytest.mark.parametrize(("fields", "words"), [
    pytest.param({"strategy": "torch-tensor", "workers": 3, "global_batch": 15},
                 "split over 3 workers in the usual ways", marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-layers", "workers": 5, "global_batch": 15},
                 "it has 4 blocks and 5 stages were asked for", marks=pytest.mark.soak),
    pytest.param({"strategy": "torch-pipeline", "knobs": {"balance": "measured"}},
                 "only plain sequences are cut by measured time", marks=pytest.mark.soak),
], ids=str)  # fmt: skip
def test_what_only_the_run_can_tell_it_says(fields: dict[str, Any], words: str, trained: Any) -> None:
    reason = reason_of(spec_of("hf_gpt2", **fields), trained)
    assert words in reason
    assert "add a function" in reason


@pytest.mark.soak
def reason_of(spec: RunSpec, trained: Any) -> str:
    """How a run ends that the plan could not foresee."""
    record = launch(PlannedRun(spec, 0), "own", local_system(), lambda _event: None, launcher=trained.launcher(spec))
    assert not record.ok
    return str(record.reason)
