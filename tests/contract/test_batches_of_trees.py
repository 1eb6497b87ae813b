"""Batches of several arrays, and outputs of several tensors: every strategy that takes them follows one worker.

Held to one worker with SGD and momentum, because Adam hides a factor in the gradients.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

MODELS = Path(__file__).with_name("own_models")
TOLERANCE = 1e-4
SAMPLES_TO_TEST = 20
FUNCTIONS = {"labels_inside": "named", "labels_apart": "named", "placed": "placed"}


def spec_of(model: str, **fields: Any) -> RunSpec:
    usual = {"model": ModelFile.from_text(f"{MODELS / model}.py:{FUNCTIONS[model]}"), "global_batch": 16, "steps": 4,
             "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}  # fmt: skip
    usual |= {} if "layout" in fields else {"workers": 2}
    return complete(RunSpec.parse({**usual, **fields}, "trees"))


def on(model: str, soak: bool = True, **fields: Any) -> Any:
    words = [model, *(f"{name} {value}" for name, value in fields.items())]
    return pytest.param(model, fields, id=" ".join(words), marks=[pytest.mark.soak] if soak else [])


RUNS = [
    on("labels_inside", soak=False, strategy="torch-ddp", accumulation=2, precision="fp32"),
    on("labels_apart", soak=False, strategy="torch-fsdp", recompute="full"),
    on("placed", soak=False, strategy="torch-zero"),
    *(
        on(model, strategy=name)
        for model in FUNCTIONS
        for name in ("torch-ddp", "torch-fsdp", "torch-zero", "torch-ps-sync", "torch-sandblaster")
    ),
    *(on(model, strategy="torch-mesh", layout="shard=2") for model in FUNCTIONS),
    on("labels_inside", strategy="torch-mesh", layout="replicate=2", accumulation=2),
    on("labels_apart", strategy="torch-local-sgd", knobs={"every": 1}),
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
    last, expected = spread.record.epochs[-1], single.record.epochs[-1]
    assert last.test_loss == pytest.approx(expected.test_loss, rel=TOLERANCE)
    assert last.test_metrics == pytest.approx(expected.test_metrics, rel=TOLERANCE)


def last_epoch(model: str, trained: Any) -> Any:
    return trained.again(spec_of(model, strategy="torch-single", workers=1)).record.epochs[-1]


def test_a_loss_of_the_models_is_trained_and_has_metrics_and_no_accuracy(trained: Any) -> None:
    epoch = last_epoch("labels_inside", trained)
    assert epoch.test_accuracy is None
    assert epoch.test_metrics.keys() == {"right", "loss_again"}
    # A mean over samples, also where evaluation takes several batches.
    assert epoch.test_metrics["loss_again"] == pytest.approx(epoch.test_loss, rel=1e-5)
    assert epoch.test_metrics["right"] * SAMPLES_TO_TEST == pytest.approx(
        round(epoch.test_metrics["right"] * SAMPLES_TO_TEST), abs=1e-4
    )


def test_classes_of_any_whole_type_are_learned_by_cross_entropy_and_have_an_accuracy(trained: Any) -> None:
    epoch = last_epoch("labels_apart", trained)
    assert epoch.test_accuracy is not None
    assert epoch.test_metrics == {}


def test_a_single_number_is_called_metric(trained: Any) -> None:
    epoch = last_epoch("placed", trained)
    assert epoch.test_metrics.keys() == {"metric"}
    assert epoch.test_accuracy is None


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("torch-pipeline", {}),
        ("torch-layers", {}),
        ("torch-tensor", {}),
        ("torch-mesh", {"layout": "pipeline=2"}),
        ("torch-mesh", {"layout": "tensor=2"}),
    ],
)
def test_what_passes_one_tensor_says_so_before_anything_starts(name: str, fields: dict[str, Any]) -> None:
    reason = refusal(spec_of("placed", strategy=name, **fields), local_system(), probe)
    assert reason == (
        f"{name} passes one tensor through the model, and placed.py:placed takes (4 float32, 4 float32) and returns "
        f"a tuple; use a strategy that takes such batches (torch-ddp, torch-fsdp, torch-local-sgd)"
    )
