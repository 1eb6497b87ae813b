"""A layout that does not fit the model, the batch or the schedule is refused before anything starts, in words."""

from dataclasses import replace
from typing import Any

import pytest

from contract.test_real_models import small
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.systems import local_system

pytestmark = pytest.mark.torch

MIXTRAL = {"workload": "mixtral", "options": {"size": "tiny"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layout": "tensor=8"}, "4 heads cannot be split over tensor=8"),
    ({"layout": "tensor=4", "input_shape": [18]}, "a sequence of 18 tokens does not divide over tensor=4"),
    ({"layout": "pipeline=8"}, "transformer has 5 layers to cut between and 8 stages were asked for"),
    ({"layout": "pipeline=2", "knobs": {"microbatches": 3}}, "does not divide into 3 micro-batches"),
    ({"layout": "pipeline=4", "knobs": {"microbatches": 2}}, "schedule 1f1b needs at least 4 micro-batches"),
    ({"layout": "pipeline=2", "knobs": {"schedule": "dualpipev", "microbatches": 2}}, "needs at least 4 micro-batches"),
    ({"layout": "pipeline=2", "knobs": {"schedule": "interleaved", "stages_per_worker": 1}}, "at least 2 stages"),
    ({"layout": "shard=2", "knobs": {"schedule": "zbv"}}, "layout shard=2 has none"),
    ({"layout": "pipeline=2", "knobs": {"schedule": "zbv"}, "recompute": "selective"}, "back through each block twice"),
    ({"layout": "shard=2", "accumulation": 3}, "does not divide into 3 passes"),
    ({"layout": "pipeline=2", "accumulation": 3}, "does not divide into 3 passes of 4 micro-batches"),
    ({"layout": "shard=2", "optimizer": {"name": "lbfgs"}}, "L-BFGS needs them in one place"),
    ({"strategy": "torch-ddp", "layout": "shard=2"}, "torch-ddp divides a model in one way and takes no layout"),
    ({"strategy": "torch-layers", "workers": 2, "accumulation": 2}, "torch-layers makes one pass per step"),
    ({"strategy": "torch-tensor", "workers": 2, "recompute": "full"}, "torch-tensor keeps all activations"),
    ({"strategy": "torch-pipeline", "workers": 2, "clip": 1.0}, "torch-pipeline does not clip gradients"),
    (
        {"strategy": "torch-single", "workers": 1, "device": "cuda", "execution": "graph", "recompute": "full"},
        "was not tried with execution graph; use eager or compiled",
    ),
    (
        {**MIXTRAL, "layout": "tensor=2", "execution": "compiled"},
        "cannot be compiled where they are divided over tensor",
    ),
    (
        {**MIXTRAL, "layout": "shard=2", "execution": "compiled", "recompute": "full"},
        "cannot be compiled where they are computed again (recompute full); use execution eager",
    ),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_laid_out_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    workload = {"workload": "transformer", "options": {"depth": 2, "width": 32, "heads": 4}, "input_shape": [16]}
    usual = {"strategy": "torch-mesh", "global_batch": 16, "train_samples": 64, "steps": 1, "classes": 32}
    spec = complete(RunSpec.parse({**workload, **usual, **fields}, "refused"))
    assert words in str(refusal(spec, local_system(), probe))


def test_an_old_pytorch_is_refused() -> None:
    spec = complete(RunSpec.parse({"strategy": "torch-mesh", "workers": 2, "global_batch": 16, "steps": 1}, "old"))
    old = replace(local_system(), frameworks={"torch": "2.8.0"})
    assert "torch-mesh needs PyTorch 2.10 or newer and this is 2.8.0" in str(refusal(spec, old, probe))


OTHERS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layout": "context=2"}, "divides sequences and experts of causal transformers, and mnist-small is none"),
    ({"layout": "tensor=2,pipeline=2"}, "splits stages of causal transformers only, and mnist-small is none"),
    ({"layout": "tensor=7"}, "nothing in mnist-small divides over 7 workers"),
    ({"layout": "shard=2", "recompute": "full"}, "mnist-small has no transformer blocks"),
    ({"workload": "bert", "layout": "tensor=2", "recompute": "full"}, "does not compute split blocks of bert again"),
]


@pytest.mark.parametrize(("fields", "words"), OTHERS_REFUSED, ids=[words for _, words in OTHERS_REFUSED])
def test_what_other_models_cannot_have_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    usual = {"strategy": "torch-mesh", "global_batch": 16, "steps": 1}
    data = {} if "workload" in fields else {"dataset": "mnist-5k"}
    spec = complete(RunSpec.parse({**usual, **data, **fields}, "refused"))
    assert words in str(refusal(spec, local_system(), probe))


@pytest.mark.parametrize(("layout", "words"), [
    ("shard=2,expert=4", "expert=4 deals experts among the ranks of shard, context and tensor, of which there are 2"),
    ("shard=3,tensor=2,expert=4", "shard, context and tensor, of which there are 6; use a number that divides them"),
    ("shard=4,tensor=2,expert=8", "4 experts cannot be dealt over expert=8"),
    ("tensor=4", "2 heads of keys and values cannot be split over tensor=4"),
])  # fmt: skip
def test_experts_that_cannot_be_dealt_are_refused_in_words(layout: str, words: str) -> None:
    spec = small("mixtral", strategy="torch-mesh", layout=layout, global_batch=48)
    assert words in str(refusal(spec, local_system(), probe))


def test_a_backward_pass_in_two_parts_that_would_crash_is_refused_in_words() -> None:
    spec = small("resnet", strategy="torch-mesh", layout="pipeline=2", knobs={"schedule": "zbv"})
    assert "use schedule 1f1b or interleaved, or memory format contiguous" in str(refusal(spec, local_system(), probe))
    contiguous = spec.model_copy(update={"memory_format": "contiguous"})
    assert refusal(contiguous, local_system(), probe) is None
