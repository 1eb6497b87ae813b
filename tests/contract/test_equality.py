"""Batch norms and dropout: with which fields several workers train as one does, and what is said where they do not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.plan import complete, refusal
from paceline.runs.equality import equality_findings
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

FILE = Path(__file__).with_name("own_models") / "unequal.py"
WEIGHTED = FILE.with_name("weighted.py")
TOLERANCE = 1e-4
SYNCHRONISED, BY_SAMPLE = {"batch_norm": "synchronised"}, {"dropout": "by-sample"}


def spec_of(model: str, file: Path = FILE, **fields: Any) -> RunSpec:
    usual = {
        "model": ModelFile.from_text(f"{file}:{model}"), "global_batch": 16, "train_samples": 64, "steps": 4,
        "dataset": "synthetic", "input_shape": [3, 8, 8], "classes": 10, "workers": 2,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    }  # fmt: skip
    return complete(RunSpec.parse({**usual, **fields}, "equality"))


def compared(trained: Any, spec: RunSpec) -> tuple[Any, Any]:
    assert refusal(spec, local_system(), probe) is None
    return trained.again(spec), trained.again(strategy(spec.strategy).testing.reference(spec))


def on(model: str, soak: bool = True, **fields: Any) -> Any:
    words = [model, *(f"{name} {value}" for name, value in fields.items())]
    return pytest.param(model, fields, id=" ".join(words), marks=[pytest.mark.soak] if soak else [])


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        on("normed", soak=False, strategy="torch-ddp", **SYNCHRONISED),
        on("dropped", soak=False, strategy="torch-ddp", accumulation=2, **BY_SAMPLE),
        on("normed", strategy="torch-fsdp", **SYNCHRONISED),
        on("normed", strategy="torch-zero", memory_format="contiguous", **SYNCHRONISED),
        on("dropped", strategy="torch-fsdp", **BY_SAMPLE),
        on("dropped", strategy="torch-zero", **BY_SAMPLE),
        on("dropped", strategy="torch-ddp", workers=4, **BY_SAMPLE),
    ],
)
def test_with_the_field_it_trains_as_one_worker_does(model: str, fields: dict[str, Any], trained: Any) -> None:
    spread, single = compared(trained, spec_of(model, **fields))
    np.testing.assert_allclose(spread.losses, single.losses, rtol=TOLERANCE)
    assert spread.weights.keys() == single.weights.keys()
    # With them running means and variances.
    for name, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=TOLERANCE, err_msg=name)
    assert not {"local_batch_norm", "dropout_by_worker"} & {finding.code for finding in spread.record.findings}


@pytest.mark.parametrize(("model", "code"), [("normed", "local_batch_norm"), ("dropped", "dropout_by_worker")])
def test_without_it_losses_differ_and_a_finding_says_so(model: str, code: str, trained: Any) -> None:
    spread, single = compared(trained, spec_of(model, strategy="torch-ddp"))
    assert np.abs(spread.losses / single.losses - 1).max() > 10 * TOLERANCE
    assert code in {finding.code for finding in spread.record.findings}
    assert code not in {finding.code for finding in single.record.findings}


def findings(model: str, **fields: Any) -> dict[str, tuple[str, str]]:
    spec = spec_of(model, **fields)
    return {finding.code: (finding.text, finding.hint) for finding in equality_findings(spec, probe(spec))}


def test_a_finding_says_of_how_many_samples_statistics_are_and_what_restores_equality() -> None:
    assert findings("normed", strategy="torch-ddp", accumulation=2) == {
        "local_batch_norm": (
            "batch norms (images and 1 more) take their statistics from 4 of the 16 samples of a step: losses are not "
            "those of one worker",
            "use --batch-norm synchronised, or use norms of groups or layers",
        )
    }
    assert findings("dropped", strategy="torch-ddp") == {
        "dropout_by_worker": (
            "dropout is active and each worker draws its own: losses differ from those of one worker by chance",
            "use --dropout by-sample, or set it to 0 to compare losses",
        )
    }


def test_where_only_accumulation_takes_a_batch_apart_it_is_what_to_leave_out() -> None:
    of_one = findings("normed", strategy="torch-single", workers=1, accumulation=2)
    assert of_one["local_batch_norm"][1] == "leave accumulation out, or use norms of groups or layers"
    text, _ = findings("dropped", strategy="torch-single", workers=1, accumulation=2)["dropout_by_worker"]
    assert text.startswith("dropout is active and each pass of a step draws its own")


def test_passes_of_a_step_keep_statistics_of_their_own() -> None:
    text, hint = findings("normed", strategy="torch-ddp", accumulation=2, **SYNCHRONISED)["local_batch_norm"]
    assert "8 of the 16 samples" in text
    assert hint.startswith("each pass of a step has statistics of its own: leave accumulation out")


def test_a_strategy_that_does_not_heed_the_field_names_those_that_do() -> None:
    _, hint = findings("normed", strategy="torch-ps-sync")["local_batch_norm"]
    assert hint == (
        "use --batch-norm synchronised with torch-ddp, torch-fsdp, torch-zero, or use norms of groups or layers"
    )


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("plain", {"strategy": "torch-ddp"}),
        ("normed", {"strategy": "torch-single", "workers": 1}),
        ("dropped", {"strategy": "torch-local-sgd"}),
        ("normed", {"strategy": "torch-downpour"}),
    ],
)
def test_nothing_is_said_where_it_does_not_matter(model: str, fields: dict[str, Any]) -> None:
    assert findings(model, **fields) == {}


def test_a_loss_in_which_samples_weigh_unequally_is_found_and_said(trained: Any) -> None:
    spread, single = compared(trained, spec_of("plain", strategy="torch-ddp", file=WEIGHTED))
    assert np.abs(spread.losses / single.losses - 1).max() > 10 * TOLERANCE
    assert [finding.hint for finding in spread.record.findings if finding.code == "samples_weigh_unequally"] == [
        "give a function loss(outputs, targets) that takes the mean in each sample first"
    ]
    assert "samples_weigh_unequally" not in {finding.code for finding in single.record.findings}
    of_passes = findings("plain", strategy="torch-single", workers=1, accumulation=2, file=WEIGHTED)
    assert of_passes["samples_weigh_unequally"][1].startswith("leave accumulation out, or give a function loss(")


def test_noise_that_is_of_no_sample_is_found_by_trying() -> None:
    facts = probe(spec_of("noisy"))
    assert (facts.draws, facts.draws_by_sample) == (True, False)
    assert refusal(spec_of("noisy", strategy="torch-ddp", **BY_SAMPLE), local_system(), probe) == (
        "unequal.py:noisy draws random numbers in ways that do not tell its samples apart, and dropout by-sample was "
        "asked for; use dropout, or attention with dropout, of PyTorch with samples in the first dimension"
    )
    _, hint = findings("noisy", strategy="torch-ddp")["dropout_by_worker"]
    assert hint == "set it to 0 to compare losses"


@pytest.mark.parametrize("form", ["an object", "its loss alone", "one number a sample"])
def test_dropout_is_found_in_whatever_a_model_returns(form: str) -> None:
    from torch import nn

    from paceline.frameworks.torch.equality.look import drawing_facts

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))

        def forward(self, x: Any) -> Any:
            scores = self.layers(x)
            return {"an object": SimpleNamespace(scores=scores), "its loss alone": {"loss": scores.mean()},
                    "one number a sample": scores.squeeze()}[form]  # fmt: skip

    torch.manual_seed(0)
    assert drawing_facts(Net(), torch.randn(2, 6)) == {"draws": True, "draws_by_sample": True}


def test_a_strategy_that_would_wait_for_a_layer_that_no_pass_uses_says_so_before_it_starts() -> None:
    assert refusal(spec_of("spared", strategy="torch-ddp"), local_system(), probe) == (
        "torch-ddp waits for the gradient of every parameter, and a pass through unequal.py:spared gives spare.weight "
        "and 1 more none; set its knob find_unused_parameters (--knob find_unused_parameters=true), or freeze them"
    )
    found = spec_of("spared", strategy="torch-ddp", knobs={"find_unused_parameters": True})
    for spec in (found, spec_of("spared", strategy="torch-fsdp")):
        assert refusal(spec, local_system(), probe) is None


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("torch-ps-sync", SYNCHRONISED, "torch-ps-sync takes the statistics of batch norms as its framework does"),
        ("torch-local-sgd", BY_SAMPLE, "torch-local-sgd draws dropout as its framework does"),
        (
            "torch-ddp",
            {**BY_SAMPLE, "execution": "compiled"},
            "dropout by-sample replaces dropout as it runs, which execution compiled with recompute none would not see",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(name: str, fields: dict[str, Any], reason: str) -> None:
    refused = refusal(spec_of("dropped", strategy=name, **fields), local_system(), probe)
    assert refused is not None
    assert refused.startswith(reason)
