"""Modules of Flax and optimizers of optax, taken as they are: on several devices they train as on one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy
from paceline.systems import local_system

pytestmark = pytest.mark.jax
for package in ("jax", "flax", "optax"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'paceline[flax]'")

FILE = Path(__file__).with_name("own_models") / "flaxes.py"


def spec_of(model: str, file: Path = FILE, **fields: Any) -> RunSpec:
    usual = {"model": ModelFile.from_text(f"{file}:{model}"), "global_batch": 16, "steps": 6, "workers": 2}
    return complete(RunSpec.parse({**usual, **fields}, "flax"))


@pytest.mark.parametrize("model", ["nnx_module", "linen_module"])
@pytest.mark.parametrize("name", ["jax-data", pytest.param("jax-fsdp", marks=pytest.mark.soak)])
def test_a_module_of_flax_trains_as_on_one_device(model: str, name: str, trained: Any) -> None:
    spec = spec_of(model, strategy=name)
    assert refusal(spec, local_system(), probe) is None
    spread, single = trained.again(spec), trained.again(strategy(name).testing.reference(spec))
    # One program over all devices sees the whole batch: norms and dropout are those of one device.
    np.testing.assert_allclose(spread.losses, single.losses, rtol=1e-4)
    assert spread.weights.keys() == single.weights.keys()
    for weight, array in single.weights.items():
        np.testing.assert_allclose(spread.weights[weight], array, atol=1e-4, err_msg=weight)
    last, expected = spread.record.epochs[-1], single.record.epochs[-1]
    assert last.test_metrics == pytest.approx(expected.test_metrics, rel=1e-4)
    assert last.test_accuracy == pytest.approx(last.test_metrics["right"], rel=1e-5)
    assert spread.record.findings == () or "local_batch_norm" not in {item.code for item in spread.record.findings}


def test_running_means_move_and_are_not_trained(trained: Any) -> None:
    weights = trained.again(spec_of("nnx_module", strategy="jax-single", workers=1)).weights
    assert np.abs(weights["norm.mean"]).max() > 0
    assert probe(spec_of("nnx_module")).parameters == 12 * 16 + 2 * 16 + 16 * 4 + 4


@pytest.mark.soak
@pytest.mark.parametrize("model", ["nnx_module", "linen_module"])
def test_passes_go_with_running_means_and_keys_and_their_share_of_a_batch_is_said(model: str, trained: Any) -> None:
    spec = spec_of(model, strategy="jax-data", accumulation=2)
    spread, single = trained.again(spec), trained.again(spec.model_copy(update={"workers": 1}))
    assert np.isfinite(spread.losses).all() and np.abs(spread.losses / single.losses - 1).max() > 1e-3
    said = {finding.code: finding.text for finding in spread.record.findings}
    assert "from 4 of the 16 samples of a step" in said["local_batch_norm"] and "dropout_by_worker" in said


def test_several_inputs_are_refused_by_name_where_a_model_does_not_take_them(tmp_path: Path) -> None:
    text = FILE.read_text().replace("def __call__(self, vector, mask):", "def __call__(self, vector):")
    (tmp_path / "mine.py").write_text(text)
    from paceline.errors import ModelError

    with pytest.raises(ModelError, match=r"does not take inputs of shape vector 12 float32, mask one number bool"):
        probe(spec_of("nnx_module", tmp_path / "mine.py"))
