"""Layers as values: shapes, weights and work."""

import pytest

from paceline.workloads.layers import Block, Conv, Dense, Embed, Flatten, MaxPool, Norm, Weight

EVERY_LAYER = [
    (Conv(8), (3, 6, 6)),
    (MaxPool(), (3, 6, 6)),
    (Flatten(), (3, 6, 6)),
    (Dense(5), (12,)),
    (Embed(11, 8), (6,)),
    (Norm(), (6, 8)),
    (Block(2), (6, 8)),
]


def parameters(layer, shape):
    return sum(weight.size for weight in layer.weights(shape).values())


@pytest.mark.parametrize(
    ("layer", "given", "output"),
    [
        (Conv(8), (3, 6, 6), (8, 6, 6)),
        (MaxPool(), (3, 6, 6), (3, 3, 3)),
        (MaxPool(), (3, 7, 5), (3, 3, 2)),
        (MaxPool(3), (1, 9, 9), (1, 3, 3)),
        (Flatten(), (3, 6, 6), (108,)),
        (Dense(5), (12,), (5,)),
        (Dense(5), (6, 12), (6, 5)),
        (Embed(11, 8), (6,), (6, 8)),
        (Norm(), (6, 8), (6, 8)),
        (Block(2), (6, 8), (6, 8)),
    ],
)
def test_each_layer_knows_the_shape_it_makes(layer, given, output):
    assert layer.output(given) == output


@pytest.mark.parametrize(
    ("layer", "given", "count"),
    [
        (Conv(32), (1, 28, 28), 3 * 3 * 1 * 32 + 32),
        (Conv(8, kernel=5), (3, 6, 6), 5 * 5 * 3 * 8 + 8),
        (MaxPool(), (3, 6, 6), 0),
        (Flatten(), (3, 6, 6), 0),
        (Dense(5), (12,), 12 * 5 + 5),
        (Embed(11, 8), (6,), (11 + 6) * 8),
        (Norm(), (6, 8), 2 * 8),
        (Block(2), (6, 8), 12 * 8 * 8 + 9 * 8 + 4 * 8),
    ],
)
def test_each_layer_knows_how_many_numbers_it_trains(layer, given, count):
    assert parameters(layer, given) == count


@pytest.mark.parametrize(
    ("layer", "given", "flops"),
    [
        (Conv(8), (3, 6, 6), 2 * 9 * 3 * 8 * 36),
        (MaxPool(), (3, 6, 6), 108),
        (Flatten(), (3, 6, 6), 0),
        (Dense(5), (12,), 2 * 12 * 5),
        (Dense(5), (6, 12), 6 * 2 * 12 * 5),
        (Embed(11, 8), (6,), 48),
        (Norm(), (6, 8), 8 * 48),
        (Block(2), (6, 8), 2 * 6 * 12 * 64 + 4 * 6 * 6 * 8),
    ],
)
def test_each_layer_knows_the_work_of_a_forward_pass(layer, given, flops):
    assert layer.flops(given) == flops


def test_the_work_of_a_block_is_that_of_its_dense_layers_and_two_attention_products():
    length, width = 6, 8
    dense = sum(Dense(out).flops((length, into)) for into, out in ((8, 24), (8, 8), (8, 32), (32, 8)))
    attention = 2 * (2 * length * length * width)
    assert Block(2).flops((length, width)) == dense + attention


def test_a_convolution_lays_its_kernel_out_as_height_width_in_out():
    weights = Conv(8).weights((3, 6, 6))
    assert weights["kernel"].shape == (3, 3, 3, 8)
    assert weights["kernel"].fan == (27, 72)
    assert weights["bias"] == Weight((8,))


def test_a_dense_layer_lays_its_kernel_out_as_in_out():
    weights = Dense(5).weights((12,))
    assert weights["kernel"] == Weight((12, 5), fan=(12, 5))
    assert weights["bias"].fan is None


def test_a_norm_starts_as_no_change():
    weights = Norm().weights((6, 8))
    assert (weights["scale"].constant, weights["shift"].constant) == (1.0, 0.0)


@pytest.mark.parametrize(("layer", "shape"), EVERY_LAYER, ids=lambda value: type(value).__name__)
def test_layers_are_values_and_equal_when_they_say_the_same(layer, shape):
    assert layer == type(layer)(**vars(layer))
    assert hash(layer) == hash(type(layer)(**vars(layer)))
