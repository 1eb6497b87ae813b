"""What tf-dtensor refuses before a run."""

from collections.abc import Mapping

import pytest

from paceline.plan import complete
from paceline.spec import RunSpec, Scalar
from paceline.strategies import strategy
from paceline.systems import local_system
from paceline.workloads import Workload
from paceline.workloads.base import Layers
from paceline.workloads.layers import Dense, Flatten, Layer, Shape


class Gate(Layer):
    """A kind of layer that only this test has."""

    def output(self, shape: Shape) -> Shape:
        return shape

    def flops(self, shape: Shape) -> int:
        return 0

    def kept(self, shape: Shape) -> int:
        return 0


def layers(_options: Mapping[str, Scalar], _shape: Shape, classes: int) -> Layers:
    return (Flatten(), Gate(), Dense(classes))


def test_a_layer_that_is_not_written_out_for_dtensor_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = complete(RunSpec(strategy="tf-dtensor", workers=2, global_batch=8, steps=1))
    assert strategy("tf-dtensor").needs.check(spec, local_system()) is None
    monkeypatch.setattr("paceline.contract.context.workload", lambda name: Workload(name, "", "mnist-5k", layers))
    reason = strategy("tf-dtensor").needs.check(spec, local_system())
    assert reason == (
        "tf-dtensor has no Gate layer, which mnist-small needs; use another workload here, or keras-model-parallel"
    )
