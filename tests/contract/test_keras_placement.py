"""Keras really divides variables over the mesh: by the paths that they have, and not in silence by none."""

from typing import Any

import numpy as np
import pytest

from contract.test_jax_placement import KERAS, own_file, spec_of
from paceline.plan import PlannedRun
from paceline.runs.launch import launch
from paceline.systems import local_system

pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("keras", reason="Keras is not installed")
pytestmark = pytest.mark.jax
__all__ = ["own_file"]

OWN = """
import keras, numpy as np
def build():
    return keras.Sequential([
        keras.Input((12,)), keras.layers.Dense(8, activation="tanh", name="hidden"),
        keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(4, activation="softmax", name="out"),
    ], name="mine")
def data():
    made = np.random.default_rng(0)
    inputs = made.normal(size=(96, 12)).astype("float32")
    targets = (inputs[:, :4]).argmax(1)
    return inputs[:64], targets[:64], inputs[64:], targets[64:]
"""
PLAN = """
def plan(model):
    return {".*hidden/(kernel|bias)": "columns", "mine/out/kernel": "rows"}
"""


def test_variables_lie_in_halves_along_the_model_side_and_batches_along_the_other(look: Any) -> None:
    found = look(spec_of("mnist-small", strategy=KERAS, workers=4, global_batch=44))
    assert found["parts"]["0_conv.kernel"] == [[3, 3, 1, 16]] * 4
    assert found["parts"]["3_dense.kernel"] == [[3136, 64]] * 4
    assert found["parts"]["4_dense.kernel"] == [[64, 5]] * 4
    assert found["rows"].get("22", 0) > 5
    assert "44" not in found["rows"]
    # Pixels change hands twice; one sum is that of the gradients over the batch side.
    assert found["collectives"]["all-to-all"] == 2
    assert found["collectives"]["all-reduce"] >= 3


def test_a_mesh_with_one_model_side_is_data_parallelism(look: Any) -> None:
    found = look(spec_of("mnist-small", strategy=KERAS, workers=2, knobs={"tensor": 1}))
    assert found["parts"]["3_dense.kernel"] == [[6272, 64]] * 2
    assert found["collectives"] == {"all-reduce": 1}


def test_blocks_lie_in_halves(look: Any) -> None:
    found = look(spec_of("transformer", strategy=KERAS, workers=2))
    assert found["parts"]["1_block.qkv_kernel"] == [[32, 48]] * 2
    assert found["parts"]["1_block.down_kernel"] == [[64, 32]] * 2
    assert found["collectives"]["all-gather"] == 4


def test_an_own_keras_model_trains_the_same_on_two_workers(own_file: Any, trained: Any) -> None:
    fields = own_file(OWN + PLAN)
    alone, spread = (
        trained("mnist-small", strategy=KERAS, workers=workers, global_batch=16, **fields) for workers in (1, 2)
    )
    np.testing.assert_allclose(spread.losses, alone.losses, rtol=1e-4)
    assert spread.losses[-1] < spread.losses[0]
    assert {"mine/hidden/kernel", "mine/norm/moving_mean"} <= set(spread.weights)
    assert np.abs(spread.weights["mine/norm/moving_mean"]).max() > 0
    for name, array in alone.weights.items():
        np.testing.assert_allclose(spread.weights[name], array, atol=2e-4, err_msg=name)


def test_an_own_keras_model_is_divided_as_its_plan_says_or_by_columns(own_file: Any, look: Any) -> None:
    fields = {"strategy": KERAS, "workers": 2, "global_batch": 16}
    planned = look(spec_of("mnist-small", **fields, **own_file(OWN + PLAN)))["parts"]
    assert planned["mine/hidden/kernel"] == [[12, 4]] * 2
    assert planned["mine/hidden/bias"] == [[4]] * 2
    assert planned["mine/out/kernel"] == [[4, 4]] * 2
    assert planned["mine/out/bias"] == [[4]] * 2
    free = look(spec_of("mnist-small", **fields, **own_file(OWN)))["parts"]
    assert free["mine/hidden/kernel"] == [[12, 4]] * 2
    assert free["mine/out/kernel"] == [[8, 2]] * 2


@pytest.mark.parametrize(("plan", "words"), [
    ('{"hidden/kernel": "columns"}', "which no variable's path matches; paths: mine/hidden/kernel"),
    ('{".*hidden/kernel": "wide"}', 'give "columns" or "rows"'),
    ('["hidden"]', "must return"),
])  # fmt: skip
def test_a_plan_that_matches_nothing_is_an_error_and_not_silence(
    plan: str, words: str, own_file: Any, trained: Any
) -> None:
    fields = own_file(f"{OWN}\ndef plan(model):\n    return {plan}\n")
    spec = spec_of("mnist-small", strategy=KERAS, workers=2, global_batch=16, **fields)
    record = launch(PlannedRun(spec, 0), "plans", local_system(), lambda _event: None, launcher=trained.launcher(spec))
    assert not record.ok
    assert words in str(record.reason)
