"""torch-mesh on real models: sequences divided, experts dealt, tied heads, each as on one worker."""

from typing import Any

import pytest

from contract.test_real_models import exactly, small
from contract.test_torch_mesh import CLIP, EVERYTHING, assert_equal_training, on
from paceline.contract.context import spec_facts
from paceline.contract.strategy import on_baseline
from paceline.plan import refusal
from paceline.runs.probe import probe
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch

V = "zbv"
COMPILED = {"execution": "compiled"}
RING = {"knobs": {"attention": "ring"}}
CASES = [
    ("llama", on("shard=2,tensor=2")),
    ("llama", on("context=2", clip=CLIP)),
    ("llama", on("pipeline=2,context=2", **EVERYTHING)),
    ("llama", on("tensor=2,context=2", recompute="selective")),
    ("gpt", on("tensor=2", clip=CLIP)),
    ("gpt", on("context=2")),
    ("llama", on("context=2", recompute="selective", clip=CLIP, **RING)),
    ("gpt", on("context=4", soak=True, **EVERYTHING, **RING)),
    ("llama", on("tensor=2,context=2", soak=True, **EVERYTHING, **RING)),
    ("gpt", on("pipeline=2,context=2", soak=True, **EVERYTHING, **RING)),
    ("mixtral", on("shard=2,context=2,expert=4", soak=True, clip=CLIP, **RING)),
    ("gpt", on("pipeline=2", clip=CLIP)),
    ("gpt", on("pipeline=2", V, accumulation=2)),
    ("mixtral", on("shard=2,expert=2", clip=CLIP)),
    ("mixtral", on("shard=4,expert=2", soak=True, **EVERYTHING)),
    ("mixtral", on("shard=2,pipeline=2,expert=2", accumulation=2, clip=CLIP)),
    ("mixtral", on("shard=2,context=2,expert=4", soak=True, clip=CLIP)),
    ("mixtral", on("replicate=2,shard=2,expert=2", soak=True, clip=CLIP)),
    ("mixtral", on("shard=2,tensor=2,expert=2", clip=CLIP)),
    ("mixtral", on("tensor=2", soak=True, clip=CLIP)),
    ("mixtral", on("tensor=2,expert=2", soak=True, **EVERYTHING)),
    ("mixtral", on("shard=2,tensor=2,expert=4", soak=True, recompute="selective", clip=CLIP)),
    ("mixtral", on("replicate=2,tensor=2,expert=2", soak=True, accumulation=2, clip=CLIP)),
    ("mixtral", on("tensor=2,pipeline=2,expert=2", "zbv", soak=True, **EVERYTHING)),
    ("mixtral", on("tensor=2,context=2,expert=4", soak=True, **EVERYTHING)),
    ("mixtral", on("pipeline=2,context=2,expert=2", soak=True, clip=CLIP)),
    ("mixtral", on("shard=2,tensor=2,pipeline=2,expert=2", soak=True, clip=CLIP)),
    ("gpt", on("shard=2,tensor=2", soak=True, **EVERYTHING)),
    ("gpt", on("tensor=2,context=2", soak=True, **EVERYTHING)),
    ("gpt", on("shard=2,pipeline=2", soak=True, **EVERYTHING)),
    ("gpt", on("tensor=2,pipeline=2", "interleaved", soak=True, clip=CLIP)),
    ("gpt", on("replicate=2,context=2,pipeline=2", soak=True, global_batch=32, clip=CLIP)),
    ("llama", on("shard=2,context=2", soak=True, accumulation=2)),
    ("llama", on("shard=2,tensor=2,context=2", soak=True, **EVERYTHING)),
    ("llama", on("tensor=2,pipeline=2,context=2", "1f1b", soak=True, **EVERYTHING)),
    ("llama", on("shard=2,tensor=2,pipeline=2", V, soak=True, **EVERYTHING)),
    # Where an embedding's vectors go straight into a compiled block, its gradient gets lost unless they have arrived.
    ("llama", on("tensor=2", **COMPILED, **EVERYTHING)),
    ("llama", on("shard=2,tensor=2", soak=True, **COMPILED, **EVERYTHING)),
    ("llama", on("tensor=2", soak=True, **COMPILED, recompute="selective")),
    ("llama", on("shard=2,tensor=2", soak=True, **COMPILED)),
    ("llama", on("shard=2", soak=True, **COMPILED, recompute="full")),
    ("llama", on("shard=2,pipeline=2", V, soak=True, **COMPILED, recompute="full")),
    ("llama", on("tensor=2,context=2", soak=True, **COMPILED, recompute="selective")),
    ("llama", on("shard=2,context=2", soak=True, **COMPILED, **EVERYTHING)),
    ("gpt", on("shard=2,tensor=2,pipeline=2", soak=True, **COMPILED, **EVERYTHING)),
    ("gpt", on("replicate=2,tensor=2", soak=True, **COMPILED, recompute="full", clip=CLIP)),
    ("bert", on("tensor=2", soak=True, **COMPILED)),
    ("mixtral", on("shard=2", soak=True, **COMPILED)),
    ("bert", on("shard=2", recompute="full")),
    ("bert", on("tensor=2", clip=CLIP)),
    ("vit", on("shard=2,tensor=2", soak=True, clip=CLIP, accumulation=2)),
    ("bert", on("pipeline=2", soak=True, clip=CLIP)),
    ("vit", on("shard=2,pipeline=2", soak=True, clip=CLIP)),
    ("resnet", on("pipeline=2", soak=True)),
    ("resnet", on("pipeline=2", V, soak=True)),
]


@pytest.mark.parametrize(
    ("model", "fields"),
    [pytest.param(model, *case.values, id=f"{model} {case.id}", marks=case.marks) for model, case in CASES],
)
def test_a_layout_trains_a_real_model_as_one_worker_does(model: str, fields: dict[str, Any], trained: Any) -> None:
    spec = exactly(small(model, strategy="torch-mesh", **fields))
    assert refusal(spec, local_system(), probe) is None
    spread = trained.again(spec)
    assert_equal_training(spread, trained.again(exactly(on_baseline(spec))))
    groups = strategy("torch-mesh").footprint(spec, spec_facts(spec)).groups
    promised = [(group.parameter_bytes, group.optimizer_bytes) for group in groups for _ in range(group.ranks)]
    held = [rank.details["held_bytes"] for rank in spread.record.ranks]
    assert [(part["parameters"], part["optimizer"]) for part in held] == promised
