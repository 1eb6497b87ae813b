"""Keras models with several inputs, on TensorFlow and on JAX: they train as on one worker, or are refused in words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

FILE = Path(__file__).with_name("own_models") / "keras_batches.py"


def spec_of(name: str, **fields: Any) -> RunSpec:
    usual = {"model": ModelFile.from_text(f"{FILE}:two_inputs"), "strategy": name, "global_batch": 16, "steps": 4,
             "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "workers": 2}  # fmt: skip
    return complete(RunSpec.parse({**usual, **fields}, "keras"))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tf-mirrored", {"accumulation": 2}),
        pytest.param("tf-multiworker", {}, marks=pytest.mark.soak),
        pytest.param("tf-central", {}, marks=pytest.mark.soak),
        pytest.param("keras-model-parallel", {}, marks=pytest.mark.soak),
    ],
)
def test_a_model_with_two_inputs_trains_as_on_one_worker(name: str, fields: dict[str, Any], trained: Any) -> None:
    spec = spec_of(name, **fields)
    assert refusal(spec, local_system(), probe) is None
    alone = strategy(name).testing.reference(spec)
    if strategy(alone.strategy).trains != "keras":
        alone = spec.model_copy(update={"workers": 1})
    spread, single = trained.again(spec), trained.again(alone)
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)
    last, expected = spread.record.epochs[-1], single.record.epochs[-1]
    assert last.test_loss == pytest.approx(expected.test_loss, rel=1e-4)
    assert last.test_metrics == pytest.approx(expected.test_metrics, rel=1e-4)
    assert last.test_accuracy == pytest.approx(last.test_metrics["right"], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "fields"), [("tf-ps", {}), ("tf-layers", {}), ("tf-mirrored", {"knobs": {"loop": "fit"}})]
)
def test_what_passes_one_tensor_says_so_before_anything_starts(name: str, fields: dict[str, Any]) -> None:
    reason = refusal(spec_of(name, **fields), local_system(), probe)
    assert reason is not None
    assert reason.startswith(
        f"{name} passes one tensor through the model, and keras_batches.py:two_inputs takes vector 6 float32, image "
        f"4x4x1 uint8 and returns a dict of logits; use a strategy that takes such batches (tf-central, "
    )
