"""What a step computes, sends and holds, in exact numbers."""

import pytest

from paceline.costs.footprint import Footprint, ModelFacts, RankFootprint, optimizer_bytes, training_flops
from paceline.costs.layers import LayerFacts
from paceline.costs.messages import Message, all_gather, all_reduce, exchange, reduce_scatter
from paceline.spec import Optimizer

MODEL = ModelFacts((LayerFacts("first", 100, 2_000, 30), LayerFacts("second", 11, 500, 7)))


def test_a_model_is_the_sum_of_its_layers():
    assert MODEL.parameters == 111
    assert MODEL.parameter_bytes == 444
    assert MODEL.forward_flops == 2_500
    assert MODEL.activation_bytes == 4 * 37


def test_training_costs_three_forward_passes_per_sample():
    assert training_flops(MODEL, samples=10) == 75_000


@pytest.mark.parametrize(
    ("settings", "numbers", "counters"),
    [
        ({"name": "adam"}, 2 * 111, 4),
        ({"name": "adagrad"}, 111, 4),
        ({"name": "sgd"}, 0, 0),
        ({"name": "sgd", "momentum": 0.9}, 111, 0),
    ],
)
def test_the_optimizer_holds_its_states_and_a_counter_per_array(settings, numbers, counters):
    assert optimizer_bytes(Optimizer(**settings), parameters=111, tensors=4) == 4 * (numbers + counters)


def worker(*messages, ranks=2):
    return RankFootprint("worker", ranks, 1, messages, 1, 20, 300, 4000)


def test_bytes_sent_count_every_message_as_often_as_it_goes():
    share = worker(Message("gradients", "all-reduce", 400, 600, 600), exchange("activations", 20, 10, count=8))
    assert share.sent_bytes == 760
    assert share.received_bytes == 680
    assert Footprint((share,)).sent_bytes == 2 * 760


def test_nothing_is_sent_by_one_rank_alone():
    for collective in (all_reduce, all_gather, reduce_scatter):
        assert collective("gradients", 400, 1) == ()


def test_an_all_reduce_moves_as_much_as_a_reduce_scatter_and_an_all_gather():
    (whole,), (first,), (second,) = (c("g", 400, 4) for c in (all_reduce, reduce_scatter, all_gather))
    assert whole.sent_bytes == first.sent_bytes + second.sent_bytes == 600


def test_bytes_held_are_parameters_gradients_optimizer_and_activations():
    assert worker().held_bytes == 4321


def test_the_heaviest_rank_is_the_one_that_holds_most():
    server = RankFootprint("server", 1, 0, (), 9000, 0, 0, 0)
    footprint = Footprint((worker(), server))
    assert footprint.heaviest is server
    assert footprint.ranks == 3
