"""Emitted scripts of GPT-2 and Llama lose what Paceline's runs of them lose, on one worker and in layouts."""

from typing import Any

import pytest

from integration.test_emitted_scripts import DECAYING, STEPS, TOLERANCE, TRANSFORMER, Bench, bench, start
from paceline.errors import SpecError
from paceline.plan import complete
from paceline.recommend.scripts import emit
from paceline.spec import RunSpec

__all__ = ["bench"]
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("probing_without_imports")]

LLAMA = {
    "workload": "llama", "options": {"depth": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 64},
    "input_shape": [16], "classes": 33, "train_samples": 64, "global_batch": 16, "steps": STEPS,
}  # fmt: skip
GPT = {**TRANSFORMER, "workload": "gpt"}
# Real models: the first is always run, the others are left to the long tests.
REAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (LLAMA, {"strategy": "torch-mesh", "layout": "shard=2,tensor=2", "clip": 0.5, "optimizer": DECAYING}),
    (LLAMA, {"strategy": "torch-mesh", "layout": "pipeline=2", "recompute": "full"}),
    (
        LLAMA,
        {
            "strategy": "torch-mesh",
            "layout": "shard=2,tensor=2",
            "recompute": "full",
            "execution": "compiled",
            "accumulation": 2,
            "knobs": {"reduce": "each"},
        },
    ),
    (
        LLAMA,
        {
            "strategy": "torch-mesh",
            "layout": "pipeline=2,tensor=2",
            "execution": "compiled",
            "knobs": {"schedule": "zbv"},
        },
    ),
    (LLAMA, {"strategy": "torch-mesh", "layout": "context=2,tensor=2", "recompute": "selective"}),
    (LLAMA, {"strategy": "torch-mesh", "layout": "context=2,pipeline=2"}),
    (LLAMA, {"strategy": "torch-single"}),
    (LLAMA, {"strategy": "torch-ddp", "workers": 2}),
    (LLAMA, {"strategy": "torch-fsdp", "workers": 2, "precision": "bf16"}),
    (GPT, {"strategy": "torch-mesh", "layout": "shard=2,tensor=2", "clip": 0.5, "optimizer": DECAYING}),
    (GPT, {"strategy": "torch-mesh", "layout": "replicate=2,context=2", "accumulation": 2}),
    (GPT, {"strategy": "torch-mesh", "layout": "context=2,tensor=2"}),
    (GPT, {"strategy": "torch-single"}),
    (GPT, {"strategy": "torch-ddp", "workers": 2}),
    (GPT, {"strategy": "torch-fsdp", "workers": 2}),
]


@pytest.mark.parametrize(("model", "fields"), [
    pytest.param(
        model, fields, id=" ".join([model["workload"], fields["strategy"], fields.get("layout", "")]).strip(),
        marks=[pytest.mark.soak] * (number > 0),
    )
    for number, (model, fields) in enumerate(REAL)
])  # fmt: skip
def test_the_script_of_a_real_model_loses_what_pacelines_run_of_it_loses(
    bench: Bench, model: dict[str, Any], fields: dict[str, Any]
) -> None:
    spec = complete(RunSpec.parse({**model, **fields}, "test"))
    losses, said = bench.scripted(spec, "--initial-weights", start(bench, spec))
    assert losses == pytest.approx(bench.measured(spec), rel=1e-2 if spec.precision == "bf16" else TOLERANCE)
    assert losses[-1] < losses[0]
    assert "checkpoint: model.pt" in said


@pytest.mark.parametrize(("model", "fields", "words"), [
    (GPT, {"layout": "pipeline=2"}, "the head of gpt is tied to its table of tokens"),
    ({**GPT, "workload": "mixtral"}, {"layout": "shard=2,expert=2"}, "no PyTorch source for a MoeBlock layer; use"),
])  # fmt: skip
def test_what_no_script_has_words_for_is_refused_in_a_sentence(
    model: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    spec = complete(RunSpec.parse({**model, "strategy": "torch-mesh", **fields}, "test"))
    with pytest.raises(SpecError, match=words):
        emit(spec)
