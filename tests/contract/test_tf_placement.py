"""TensorFlow's data-parallel strategies really spread: replicas compute at once, each on its share and its device."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategy

pytestmark = pytest.mark.tensorflow

BATCH, STEPS, WORKERS = 40, 3, 2
# Each replica leaves a file in every step and waits until there are as many as replicas; one alone waits in vain.
MEETING = """
import time
import uuid
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

FOLDER, SHARE, REPLICAS, PATIENCE_SECONDS = Path({folder!r}), {share}, {replicas}, 200


def build():
    return keras.Sequential([keras.Input((20,)), keras.layers.Dense(4)])


def data():
    x = np.random.default_rng(0).normal(size=(150, 20)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return x[:120], y[:120], x[120:], y[120:]


def meet(outputs):
    if len(outputs) == SHARE:
        (FOLDER / uuid.uuid4().hex).touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(list(FOLDER.iterdir())) < REPLICAS:
            if time.monotonic() > deadline:
                raise TimeoutError("no other replica came while this one computed")
            time.sleep(0.005)
    return np.float32(1)


def loss(outputs, targets):
    # TensorFlow runs functions with side effects one after another and leaves out others that nobody needs, so this one
    # does not own up to its side effect, and its result is used.
    factor = tf.ensure_shape(tf.numpy_function(meet, [outputs], tf.float32, stateful=False), ())
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)) * factor
"""


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("tf-mirrored", {}),
        ("tf-mirrored", {"cross_device_ops": "one_device"}),
        ("tf-mirrored", {"loop": "fit"}),
        ("tf-central", {}),
        ("tf-multiworker", {}),
    ],
    ids=str,
)
def test_replicas_compute_at_the_same_time_each_on_its_share(
    name: str, knobs: dict[str, Any], tmp_path: Path, trained: Any
) -> None:
    folder, file = tmp_path / "met", tmp_path / "meeting.py"
    folder.mkdir()
    file.write_text(MEETING.format(folder=str(folder), share=BATCH // WORKERS, replicas=WORKERS))
    spec = {"strategy": name, "workers": WORKERS, "knobs": knobs, "global_batch": BATCH, "steps": STEPS}
    trained.again(complete(RunSpec.model_validate({"model": ModelFile.from_text(str(file)), **spec})))
    assert len(list(folder.iterdir())) == STEPS * WORKERS


def operations(name: str, workers: int, python: Path, **fields: Any) -> dict[str, dict[str, int]]:
    script = Path(__file__).parent / "tf_operations.py"
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(
        [python, str(script), name, str(workers), json.dumps(fields)],
        capture_output=True, text=True, check=True, env=env,
    )  # fmt: skip
    return dict(json.loads(found.stdout.strip().splitlines()[-1]))


def count(ops: dict[str, int], *kinds: str) -> int:
    """Operations of these kinds, under whatever name an optimised kernel has."""
    return sum(number for op, number in ops.items() if any(kind in op for kind in kinds))


@pytest.mark.parametrize("name", ["tf-mirrored", "tf-central"])
def test_every_device_runs_a_forward_and_a_backward_pass(name: str, interpreters: Any) -> None:
    found = operations(name, WORKERS, interpreters["tensorflow"].python)
    assert sorted(found) == ["device:CPU:0", "device:CPU:1"]
    for device, ops in found.items():
        assert count(ops, "Conv2D") - count(ops, "Conv2DBackprop") == 1, device
        assert count(ops, "Conv2DBackprop") == 1, device
        # Two dense layers: a product forward, two backward for each.
        assert count(ops, "MatMul") == 6, device
    updates = [count(found[device], "ResourceApplyAdam") for device in sorted(found)]
    # Six variables: on every device, or in one place for all.
    assert updates == ([6, 6] if name == "tf-mirrored" else [6, 0])


@pytest.mark.parametrize(
    ("name", "copies"), [("tf-single", 1), ("tf-mirrored", 2), ("tf-central", 1), ("tf-multiworker", 1)]
)
def test_variables_are_where_the_strategy_says(name: str, copies: int, trained: Any) -> None:
    chosen = strategy(name)
    record = trained("mnist-small", strategy=name, workers=chosen.needs.fixed_workers or WORKERS).record
    groups = chosen.footprint(record.spec, spec_facts(record.spec)).groups
    for rank in record.ranks:
        assert len(set(rank.details["variable_devices"])) == copies
    held = [rank.details["held_bytes"] for rank in record.ranks]
    for kind in ("parameters", "optimizer"):
        promised = sum(getattr(group, f"{kind.rstrip('s')}_bytes") * group.ranks for group in groups)
        assert sum(part[kind] for part in held) == promised
