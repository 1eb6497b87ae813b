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

MODELS = Path(__file__).with_name("own_transformers.py")
TEXT = {"dataset": "tokens", "input_shape": [16], "classes": 32}
IMAGES = {"dataset": "synthetic", "input_shape": [3, 8, 8], "classes": 10}
TOLERANCE = 1e-4


def spec_of(model: str, **fields: Any) -> RunSpec:
    usual = {"model": ModelFile.from_text(f"{MODELS}:{model}"), "global_batch": 16, "train_samples": 64, "steps": 4,
             "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}  # fmt: skip
    usual |= IMAGES if model == "timm_vit" else TEXT
    usual |= {} if "layout" in fields else {"workers": 2}
    return complete(RunSpec.parse({**usual, **fields}, "own"))


def on(model: str, soak: bool = True, **fields: Any) -> Any:
    words = [model, *(f"{name} {value}" for name, value in fields.items())]
    return pytest.param(model, fields, id=" ".join(words), marks=[pytest.mark.soak] if soak else [])


STYLES = ("nanogpt", "hf_gpt2", "hf_llama", "torchtitan", "timm_vit")
EVERYTHING = {"recompute": "full", "accumulation": 2, "clip": 0.2}
RUNS = [
    on("hf_llama", soak=False, strategy="torch-mesh", layout="shard=2", recompute="full", clip=0.2),
    on("nanogpt", soak=False, strategy="torch-tensor"),
    on("timm_vit", soak=False, strategy="torch-pipeline"),
    *(on(model, strategy="torch-fsdp", recompute="full") for model in (*STYLES, "tied")),
    *(on(model, strategy="torch-mesh", layout="replicate=2", recompute="selective") for model in STYLES),
    *(on(model, strategy="torch-tensor") for model in (*STYLES, "tied", "per_head_norm")),
    *(on(model, strategy="torch-fsdp-tensor", workers=4) for model in (*STYLES, "tied", "per_head_norm")),
    *(on(model, strategy="torch-pipeline") for model in STYLES),
    *(on(model, strategy="torch-mesh", layout="tensor=2", **EVERYTHING) for model in (*STYLES, "tied")),
    *(on(model, strategy="torch-mesh", layout="pipeline=2", **EVERYTHING) for model in STYLES),
    *(on(model, strategy="torch-mesh", layout="tensor=2,pipeline=2") for model in ("nanogpt", "hf_gpt2", "timm_vit")),
    on("torchtitan", strategy="torch-mesh", layout="shard=2,tensor=2", **EVERYTHING),
    on("hf_llama", strategy="torch-mesh", layout="replicate=2,tensor=2", **EVERYTHING),
    on("hf_llama", strategy="torch-mesh", layout="shard=2,tensor=2,pipeline=2", clip=0.2, recompute="full"),
    on("torchtitan", strategy="torch-mesh", layout="shard=2,pipeline=2", knobs={"schedule": "zbv"}),
    on("hf_llama", strategy="torch-pipeline", knobs={"schedule": "interleaved"}),
    on("nanogpt", strategy="torch-layers"),
    on("hf_gpt2", strategy="torch-ddp-pipeline", workers=4),
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
