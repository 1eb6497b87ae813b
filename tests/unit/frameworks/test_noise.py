"""What jobs measure of the noise of their gradients, without a run."""

import math

import pytest
import torch

from paceline.frameworks.torch.gradients.noise import NoiseMeter, squared_norm

pytestmark = pytest.mark.torch


def test_the_squared_norm_is_over_all_gradients_that_are_there():
    module = torch.nn.Linear(2, 2)
    module.weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert squared_norm(module.parameters()).item() == pytest.approx(30.0)
    module.bias.grad = torch.tensor([1.0, 1.0])
    assert squared_norm(module.parameters()).item() == pytest.approx(32.0)


def test_parts_of_a_step_add_up_and_a_scaled_loss_is_taken_back():
    meter = NoiseMeter(8, 32)
    meter.add_part(torch.tensor(4.0))
    meter.add_part(torch.tensor(12.0))
    meter.end_step(torch.tensor(8.0), loss_factor=2.0)
    squares = meter.take()
    assert (squares.small_batch, squares.big_batch) == (8, 32)
    assert (squares.small_squares, squares.big_squares) == ([4.0], [2.0])
    assert meter.take().big_squares == []


def test_steps_whose_gradients_overflowed_are_left_out():
    meter = NoiseMeter(8, 32)
    for square in (math.inf, 3.0):
        meter.add_part(torch.tensor(square))
        meter.end_step(torch.tensor(1.0), 1.0)
    assert meter.take().small_squares == [3.0]
