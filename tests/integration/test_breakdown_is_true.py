"""What a breakdown says of a run whose truth is known: a late rank, a slow link, times that were made up."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.times import traced, undisturbed
from integration.traced import LATE
from paceline.breakdown import PARTS
from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.runs.starters import ForkServers
from paceline.spec import RunSpec
from paceline.strategies import strategy

pytestmark = pytest.mark.alone

LATE_SECONDS = 0.12
RATE_BITS = 100e6
SMALL = {"strategy": "torch-ddp", "workers": 2, "global_batch": 64, "epochs": 1, "train_samples": 1024}
SERVED = {**SMALL, "strategy": "tf-ps"}
# A model whose loss takes longer on the second of two workers that run what a chief sends them: nothing but what
# TensorFlow's own kernels do. The one that sleeps does so before each element and once more before the end.
LATE_WORKER = """
import keras
import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep

def build():
    return keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])

def loss(outputs, targets):
    late = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
    with tf.control_dependencies([outputs]):
        moments = tf.data.Dataset.range(1).apply(sleep(late * {late_microseconds} // 2))
        factor = 1 + 0 * moments.reduce(tf.constant(0, tf.int64), lambda total, one: total + one)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
    return tf.reduce_mean(losses) * tf.cast(factor, tf.float32)
"""

torch_only = pytest.mark.torch
tensorflow_only = pytest.mark.tensorflow


@undisturbed
def test_a_breakdown_of_made_up_times_is_exact(forking: ForkServers) -> None:
    knobs = {"step_ms": 30.0, "send_ms": 4.0, "late_ms": 6.0}
    first, last = traced({**SMALL, "strategy": "fake", "workload": "mlp", "knobs": knobs}, forking=forking)
    # Milliseconds: half a batch each, a third of it forward; then 4 of transfer, and 6 for the one that comes late.
    exact = {"step": 25, "input": 0, "forward": 5, "optimizer": 0, "other": 0, "exposed": 4}
    for rank, own in ((first, {"backward": 10, "waiting": 6}), (last, {"backward": 16, "waiting": 0})):
        assert {name: rank[name] * 1e3 for name in (*exact, *own)} == pytest.approx({**exact, **own}, abs=1e-3)


@torch_only
@undisturbed
def test_a_breakdown_calls_the_delay_of_one_rank_waiting_in_the_other_and_not_transfer(
    tmp_path: Path, forking: ForkServers
) -> None:
    pytest.importorskip("torch")
    model = tmp_path / "late.py"
    found = {}
    for late in (0.0, LATE_SECONDS):
        model.write_text(LATE.format(late=late))
        found[late] = traced({**SMALL, "model": str(model), "dataset": "mnist-5k"}, forking=forking)
    calm, held_up = found[0.0][0], found[LATE_SECONDS][0]
    assert held_up["waiting"] - calm["waiting"] == pytest.approx(LATE_SECONDS, rel=0.15)
    assert held_up["exposed"] - calm["exposed"] < 0.1 * LATE_SECONDS
    # The late rank itself waits for nobody; its delay is in its own forward pass.
    assert found[LATE_SECONDS][1]["forward"] - found[0.0][1]["forward"] == pytest.approx(LATE_SECONDS, rel=0.15)
    assert found[LATE_SECONDS][1]["waiting"] < 0.1 * LATE_SECONDS


@tensorflow_only
@undisturbed
def test_a_breakdown_of_served_workers_finds_the_delay_of_one_in_its_own_pass(
    tmp_path: Path, forking: ForkServers
) -> None:
    pytest.importorskip("tensorflow")
    model, found = tmp_path / "late.py", {}
    for late in (0.0, LATE_SECONDS):
        model.write_text(LATE_WORKER.format(late_microseconds=round(late * 1e6)))
        fields = {**SERVED, "model": str(model), "dataset": "mnist-5k", "train_samples": 4096}
        found[late] = traced(fields, forking=forking)
    (calm, calm_late), (beside, late_one) = found[0.0], found[LATE_SECONDS]
    assert late_one["forward"] - calm_late["forward"] == pytest.approx(LATE_SECONDS, rel=0.2)
    for name in ("backward", "exposed"):
        assert late_one[name] - calm_late[name] < 0.1 * LATE_SECONDS
    # Nobody waits for it in a transfer, and it does not slow others down.
    for name in ("forward", "backward", "exposed"):
        assert beside[name] - calm[name] < 0.1 * LATE_SECONDS
    assert beside["steps"] > late_one["steps"]


@pytest.fixture
def slow_link() -> Iterator[str]:
    """A network namespace of our own whose loopback link lets only so many bits pass in a second."""
    name = f"paceline-slow-{os.getpid()}"
    if (
        shutil.which("tc") is None
        or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
    ):
        pytest.skip("shaping a link needs root, iproute2 and network namespaces")
    inside = ["ip", "netns", "exec", name]
    shape = f"tc qdisc add dev lo root tbf rate {RATE_BITS:.0f}bit burst 128kb latency 200ms"
    try:
        # Packets of the usual size: the loopback's own are larger than the burst and would be dropped.
        subprocess.run([*inside, "ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
        if subprocess.run([*inside, *shape.split()], capture_output=True, check=False).returncode:
            pytest.skip("this kernel cannot shape a link (tbf)")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def with_and_without(
    link: str, fields: dict[str, Any], forking: ForkServers
) -> Iterator[tuple[float, dict[str, float], dict[str, float]]]:
    """Of each rank: the seconds that the link should take, the breakdown on a fast one and on this one."""
    spec = complete(RunSpec.model_validate(fields))
    # Both ways of the loopback share its queue, so all that is sent goes through it one after another.
    expected = strategy(spec.strategy).footprint(spec, spec_facts(spec)).sent_bytes * 8 / RATE_BITS
    for fast, slow in zip(traced(fields, forking=forking), traced(fields, "ip", "netns", "exec", link), strict=True):
        yield expected, fast, slow


@torch_only
@undisturbed
def test_a_breakdown_finds_the_transfer_that_a_slow_link_makes(slow_link: str, forking: ForkServers) -> None:
    pytest.importorskip("torch")
    for expected, before, after in with_and_without(slow_link, SMALL, forking):
        assert after["communication"] == pytest.approx(expected, rel=0.2)
        assert after["communication"] > 3 * before["communication"]
        # The other rank comes no later than before: what the link costs is not called waiting.
        assert after["waiting"] < 0.3 * expected


@tensorflow_only
@undisturbed
def test_a_breakdown_of_served_workers_finds_what_a_slow_link_makes_of_fetch_and_push(
    slow_link: str, forking: ForkServers
) -> None:
    pytest.importorskip("tensorflow")
    for expected, before, after in with_and_without(slow_link, SERVED, forking):
        # The workers share the link and each has one share of a step, give or take a few.
        assert after["exposed"] == pytest.approx(expected, rel=0.2)
        for name in ("input", "forward", "backward", "waiting"):
            assert after[name] - before[name] < 0.1 * expected


@torch_only
@undisturbed
def test_a_breakdown_adds_up_to_the_step(forking: ForkServers) -> None:
    pytest.importorskip("torch")
    for rank in traced(SMALL, forking=forking):
        assert sum(rank[part] for part in PARTS) == pytest.approx(rank["step"], rel=0.02)
        assert min(rank[part] for part in PARTS) >= 0
        assert rank["other"] < 0.2 * rank["step"]
