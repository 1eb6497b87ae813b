"""Bytes of a step: the worst moment of its passes, several passes, other batches, and deeper models."""

import pytest

from paceline.contract.trace import Trace
from paceline.costs.operations import LayerOperations, Operation, StepOperations
from paceline.costs.step_memory import LayerMemory, StepMemory

LAYERS = (
    LayerMemory("first", 10, 10, kept_bytes=100, forward_bytes=150, backward_bytes=180),
    LayerMemory("second", 20, 20, kept_bytes=200, forward_bytes=260, backward_bytes=250),
    LayerMemory("loss", 0, 0, kept_bytes=5, forward_bytes=50, backward_bytes=30),
)
STEP = StepMemory(
    2, LAYERS, buffer_bytes=1, state_bytes=60, data_bytes=7, workspace_bytes=8, update_bytes=3, evaluation_bytes=40
)


def test_the_peak_is_the_worst_moment_of_both_passes() -> None:
    # The second layer's forward pass, beside what the first keeps: 100 + 260; all others hold less.
    assert STEP.passing_bytes == 360
    assert STEP.static_bytes == 30 + 1 + 60 + 7 + 8
    assert STEP.peak_bytes() == STEP.static_bytes + 360


def test_gradients_of_the_layers_behind_are_there_in_a_backward_pass() -> None:
    heavy = StepMemory(1, (LayerMemory("first", backward_bytes=10), LayerMemory("last", 1, 500, forward_bytes=1)))
    assert heavy.passing_bytes == 510


def test_later_passes_of_a_step_find_all_gradients() -> None:
    assert STEP.passing_beside_gradients == 360
    assert STEP.peak_bytes(accumulation=2) == STEP.static_bytes + 30 + 360


def test_an_update_or_an_evaluation_may_be_the_peak() -> None:
    evaluated = StepMemory(1, (LayerMemory("one", 4, 4, 1, 2, 3),), evaluation_bytes=100)
    assert evaluated.peak_bytes() == 4 + 4 + 100
    assert StepMemory(1, (LayerMemory("one", 4, 4, 1, 2, 3),), update_bytes=50).peak_bytes() == 4 + 4 + 50


def test_workers_share_what_is_evaluated() -> None:
    tested = StepMemory(1, LAYERS, evaluation_bytes=400, evaluation_samples=8, test_samples=32)
    assert [tested.evaluated_by(workers).evaluation_bytes for workers in (1, 4, 8, 1000)] == [400, 400, 200, 50]


def test_other_batches_are_on_a_line() -> None:
    first = StepMemory(2, (LayerMemory("one", 4, 4, 20, 30, 40),), state_bytes=8, update_bytes=5)
    second = StepMemory(4, (LayerMemory("one", 4, 4, 40, 50, 60),), state_bytes=8, update_bytes=5)
    found = first.towards(second, 8)
    assert found == StepMemory(8, (LayerMemory("one", 4, 4, 80, 90, 100),), state_bytes=8, update_bytes=5)
    # Nothing is below zero, however far the line goes.
    assert first.towards(second, 0).layers[0] == LayerMemory("one", 4, 4, 0, 10, 20)


def test_layers_that_are_alike_are_repeated_with_their_optimizer() -> None:
    product = Operation("product", "bf16", (1, 2, 3, 4), 48, 10)
    update = Operation("update", "fp32", (30,), 30, 90)
    asked = tuple(LayerOperations(layer.layer, (product,), (product,)) for layer in LAYERS)
    deeper = Trace(StepOperations(asked, (update,)), STEP).repeated([("a", 0), ("b", 1), ("c", 1), ("d", 1)])
    assert [layer.layer for layer in deeper.memory.layers] == ["a", "b", "c", "d", "loss"]
    assert deeper.memory.parameter_bytes == 70 and deeper.memory.kept_bytes == 705
    assert deeper.memory.state_bytes == pytest.approx(60 * 70 / 30)
    assert deeper.operations.layers[3] == LayerOperations("d", (product,), (product,))
    assert deeper.operations.update[0].shape == (70,)
