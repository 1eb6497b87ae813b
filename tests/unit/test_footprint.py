"""What a step computes, sends and holds, in exact numbers."""

import pytest

from paceline.footprint import Footprint, LayerFacts, Message, ModelFacts, optimizer_bytes, training_flops

MODEL = ModelFacts((LayerFacts("first", 100, 2_000, 30), LayerFacts("second", 11, 500, 7)))


def test_a_model_is_the_sum_of_its_layers():
    assert MODEL.parameters == 111
    assert MODEL.parameter_bytes == 444
    assert MODEL.forward_flops == 2_500
    assert MODEL.activation_bytes == 4 * 37


def test_training_costs_three_forward_passes_per_sample():
    assert training_flops(MODEL, samples=10) == 75_000


@pytest.mark.parametrize(
    ("name", "momentum", "states"), [("adam", 0.0, 2), ("adagrad", 0.0, 1), ("sgd", 0.0, 0), ("sgd", 0.9, 1)]
)
def test_the_optimizer_holds_its_states_beside_the_parameters(name, momentum, states):
    assert optimizer_bytes(name, momentum, parameter_bytes=444) == states * 444


def test_momentum_is_a_matter_of_sgd_alone():
    assert optimizer_bytes("adam", 0.9, 444) == optimizer_bytes("adam", 0.0, 444)


def test_bytes_sent_count_every_message_as_often_as_it_goes():
    messages = (Message("gradients", 400, 600), Message("activations", 10, 20, count=8))
    assert Footprint(1, messages, 0, 0, 0, 0).sent_bytes == 760


def test_nothing_is_sent_without_messages():
    assert Footprint(1, (), 1, 1, 1, 1).sent_bytes == 0


def test_bytes_held_are_parameters_gradients_optimizer_and_activations():
    assert Footprint(1, (), 1, 20, 300, 4000).held_bytes == 4321
