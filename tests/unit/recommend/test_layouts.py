"""Layouts in recommendations: large models get one, each of its dimensions has a reason, and scripts are written."""

import ast
from typing import Any

import pytest

from paceline.cli.recommend import recommend as command
from paceline.costs.footprint import Footprint, RankFootprint
from paceline.predict.question import Question
from paceline.recommend.answer import Answer, recommend
from paceline.recommend.dimensions import explain_layout
from paceline.recommend.lighter import lighter, predict_as_is, predict_fitting
from paceline.recommend.reasons import explain
from paceline.strategies import strategy
from paceline.systems.files import load_hardware

HUGE: dict[str, Any] = {
    "workload": "transformer", "options": {"depth": 80, "width": 8192, "heads": 64}, "input_shape": (4096,),
    "workers": (1024,), "strategies": ("torch-ddp", "torch-fsdp", "torch-mesh"),
}  # fmt: skip
SMALL: dict[str, Any] = {
    "workload": "transformer", "options": {"depth": 8, "width": 1024, "heads": 16}, "input_shape": (512,),
    "workers": (8,), "global_batches": (64,), "strategies": ("torch-mesh",),
}  # fmt: skip


def question(fields: dict[str, Any], **more: Any) -> Question:
    return Question(load_hardware("8xh100-nvlink"), **{**fields, **more})


@pytest.fixture(scope="module")
def huge() -> Answer:
    return recommend(question(HUGE))


def test_a_model_that_no_device_holds_gets_a_layout_that_experts_would_use(huge: Answer) -> None:
    best = next(one for one in huge.ranked if one.spec.strategy == "torch-mesh")
    layout = best.spec.layout
    assert layout is not None and best.prediction.fits
    # Within a node, a short pipeline, and the rest of the devices divide or copy the model.
    assert layout.tensor <= 8 and layout.pipeline <= 16 and layout.workers == 1024
    assert huge.predictions < 200
    assert "a worker would hold" in huge.excluded["torch-ddp"]


def test_what_fits_only_lightened_is_recommended_lightened(huge: Answer) -> None:
    best = next(one for one in huge.ranked if one.spec.strategy == "torch-fsdp")
    assert best.spec.recompute != "none"
    asked = question(HUGE)
    (plain,) = asked.specs("torch-fsdp")
    found, why_not = predict_fitting(asked, plain)
    assert found and "a worker would hold" in str(why_not)
    assert predict_as_is(asked, plain) == ([], why_not)


def test_nothing_is_lightened_that_the_question_fixes() -> None:
    asked = question(HUGE, recompute="selective", accumulation=2, global_batches=(4096,))
    (plain,) = asked.specs("torch-fsdp")
    footprint = strategy("torch-fsdp").footprint(plain, asked.facts)
    assert list(lighter(asked, plain, footprint)) == []


def test_nothing_is_tried_where_parameters_alone_are_too_much() -> None:
    asked = question(HUGE)
    (plain,) = asked.specs("torch-ddp")
    heavy = Footprint((RankFootprint("worker", 1024, parameter_bytes=1e12, activation_bytes=1e12),))
    assert list(lighter(asked, plain, heavy)) == []


def test_each_dimension_is_explained_by_what_would_be_without_it() -> None:
    asked = question(SMALL)
    (spec,) = asked.specs("torch-mesh", {"layout": "shard=2,tensor=2,pipeline=2", "recompute": "full"})
    sentences = list(explain_layout(asked, asked.predictor.predict(spec)))
    assert [sentence.partition(":")[0] for sentence in sentences] == [
        "shard=2", "tensor=2", "pipeline=2", "Recompute full",
    ]  # fmt: skip
    assert "2 devices of one node split each layer; with shard=4,pipeline=2 instead, a step would take" in sentences[1]
    assert "with replicate=2,tensor=2,pipeline=2 instead" in sentences[0]
    assert "with all activations kept, a step would take" in sentences[3]
    assert all(sentence.endswith(".") for sentence in sentences)


def test_a_pick_without_a_layout_has_nothing_to_explain() -> None:
    asked = question(SMALL, strategies=("torch-ddp",))
    (spec,) = asked.specs("torch-ddp")
    assert list(explain_layout(asked, asked.predictor.predict(spec))) == []


def test_the_dimensions_are_among_the_reasons() -> None:
    answer = recommend(question(SMALL))
    assert answer.pick is not None and answer.pick.spec.layout is not None
    named = answer.pick.spec.layout.text.partition(",")[0]
    assert any(sentence.startswith(f"{named}: ") for sentence in explain(answer))


def test_a_script_is_emitted_for_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    command(
        workload="transformer", depth=8, width=1024, option=["heads=16"], input_shape="512", strategy="torch-mesh",
        knob=["schedule=1f1b"], workers="8", global_batch="64", system="8xh100-nvlink", emit="script",
    )  # fmt: skip
    printed = capsys.readouterr()
    assert "LAYOUT = {" in printed.out and "paceline" not in _imports(printed.out)


def _imports(text: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
    return {alias.name.partition(".")[0] for node in nodes for alias in node.names}


def test_what_is_left_out_is_told_by_its_lightest_form_or_by_what_no_batch_changes() -> None:
    (whole,) = question(HUGE).specs("torch-ddp")
    assert "of parameters, gradients and optimizer state" in str(predict_fitting(question(HUGE), whole)[1])
    asked = question({"workload": "llama", "options": {"size": "8b"}, "workers": (8,), "global_batches": (256,)})
    (divided,) = asked.specs("jax-fsdp")
    found, why_not = predict_fitting(asked, divided)
    assert not found and "even with accumulation 32 and recompute full" in str(why_not)


def test_layouts_that_tie_are_named_and_a_dimension_is_weighed_with_passes_that_divide() -> None:
    asked = {"workload": "llama", "options": {"size": "8b"}, "workers": (8,), "strategies": ("torch-mesh",)}
    answer = recommend(question(asked))
    assert answer.pick is not None
    spec = answer.pick.spec
    assert spec.accumulation > 1
    said = " ".join(explain(answer))
    assert "It ties with torch-mesh " in said
    assert "does not divide into" not in said
