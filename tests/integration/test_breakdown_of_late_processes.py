"""The delay of one process is waiting in the other, and not transfer, in TensorFlow and JAX too."""

from pathlib import Path
from typing import Any

import pytest

from integration.times import traced, undisturbed
from paceline.runs.starters import ForkServers

pytestmark = pytest.mark.alone

LATE_SECONDS = 0.15
# Models whose loss takes longer in the second of two processes.
KERAS = """
import time
import keras
import numpy as np
import tensorflow as tf

def build():
    return keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])

def hold_up(replica, outputs):
    time.sleep({late} * replica)
    return np.float32(1)

def loss(outputs, targets):
    given = [tf.distribute.get_replica_context().replica_id_in_sync_group, outputs]
    # Left out or put in a row with others if it owned up to taking time.
    factor = tf.ensure_shape(tf.numpy_function(hold_up, given, tf.float32, stateful=False), ())
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)) * factor
"""
JAX = """
import time
import jax
import jax.numpy as jnp
import numpy as np

def init(key):
    return {{"kernel": jax.random.normal(key, (784, 10)) / 28}}

def apply(params, inputs):
    return inputs.reshape(len(inputs), -1) @ params["kernel"]

def build():
    return init, apply

def hold_up(_outputs):
    time.sleep({late} * jax.process_index())
    return np.float32(1)

def loss(outputs, targets):
    given = jax.lax.stop_gradient(outputs[0, 0])
    factor = jax.pure_callback(hold_up, jax.ShapeDtypeStruct((), jnp.float32), given)
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=-1).mean() * factor
"""


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        pytest.param(KERAS, {"strategy": "tf-multiworker"}, marks=pytest.mark.tensorflow, id="tf-multiworker"),
        pytest.param(JAX, {"strategy": "jax-data", "knobs": {"processes": True}}, marks=pytest.mark.jax, id="jax-data"),
    ],
)
@undisturbed
def test_a_breakdown_calls_the_delay_of_one_process_waiting_in_the_other(
    text: str, fields: dict[str, Any], tmp_path: Path, forking: ForkServers
) -> None:
    pytest.importorskip("tensorflow" if "tf-" in fields["strategy"] else "jax")
    model, found = tmp_path / "late.py", {}
    for late in (0.0, LATE_SECONDS):
        model.write_text(text.format(late=late))
        run = {"workers": 2, "global_batch": 64, "epochs": 1, "train_samples": 640, "dataset": "mnist-5k"}
        found[late] = traced({**fields, **run, "model": str(model)}, forking=forking)
    (calm, calm_late), (held_up, late_one) = found[0.0], found[LATE_SECONDS]
    assert held_up["waiting"] - calm["waiting"] == pytest.approx(LATE_SECONDS, rel=0.2)
    assert held_up["exposed"] - calm["exposed"] < 0.2 * LATE_SECONDS
    # The late one waits for nobody; its delay is in its own passes.
    passes = [rank["forward"] + rank["backward"] for rank in (calm_late, late_one)]
    assert passes[1] - passes[0] == pytest.approx(LATE_SECONDS, rel=0.2)
    assert late_one["waiting"] < 0.2 * LATE_SECONDS
