"""The built-in models: their sizes, their options, their starting weights."""

import math

import numpy as np
import pytest

from paceline.data import data_sources
from paceline.errors import SpecError
from paceline.workloads import workload, workloads
from paceline.workloads.base import initial_weights, model_facts, named_layers, relu_places
from paceline.workloads.layers import Conv, Dense, Flatten, MaxPool

MNIST = (1, 28, 28)


def layers_of(name, shape=MNIST, classes=10, **options):
    found = workload(name)
    return found.build(options, shape, classes)


def parameters(name, shape=MNIST, classes=10, **options):
    return model_facts(layers_of(name, shape, classes, **options), shape).parameters


@pytest.mark.parametrize(("name", "count"), [("mnist-small", 402_442), ("mnist-large", 4_104_202)])
def test_the_models_of_the_first_study_have_exactly_this_many_parameters(name, count):
    assert parameters(name) == count
    weights = initial_weights(layers_of(name), MNIST, seed=0)
    assert sum(array.size for array in weights.values()) == count
    assert f"{count:,}" in workload(name).about


def test_the_dense_model_has_as_many_layers_and_units_as_asked():
    assert parameters("mlp", depth=2, width=16) == (784 * 16 + 16) + (16 * 16 + 16) + (16 * 10 + 10)


def test_the_dense_model_takes_samples_that_are_flat_already():
    assert parameters("mlp", shape=(7,), classes=2, depth=1, width=3) == (7 * 3 + 3) + (3 * 2 + 2)


def test_the_transformer_has_embeddings_blocks_a_norm_and_a_head():
    width, block = 8, 12 * 8 * 8 + 13 * 8
    expected = (30 + 6) * width + 2 * block + 2 * width + (width * 30 + 30)
    assert parameters("transformer", shape=(6,), classes=30, depth=2, width=8, heads=2) == expected


def test_a_transformer_width_that_its_heads_do_not_divide_is_refused_with_the_multiple_to_use():
    with pytest.raises(SpecError) as caught:
        layers_of("transformer", shape=(6,), width=10, heads=4)
    assert str(caught.value) == "width 10 of the transformer does not divide over 4 heads; use a multiple of 4"


def test_the_number_of_heads_changes_no_size():
    assert parameters("transformer", (6,), heads=2) == parameters("transformer", (6,), heads=8)


@pytest.mark.parametrize("name", sorted(workloads()))
def test_every_workload_is_found_by_its_own_name_and_says_what_it_is(name):
    found = workload(name)
    assert found.name == name
    assert found.about
    assert found.dataset in found.datasets
    assert set(found.datasets) <= set(data_sources())


@pytest.mark.parametrize("name", sorted(workloads()))
def test_every_workload_ends_with_one_number_per_class(name):
    shape = (6,) if "tokens" in workload(name).datasets else (3, 16, 16)
    steps = named_layers(layers_of(name, shape, classes=7), shape)
    _, last, given = steps[-1]
    assert last.output(given)[-1] == 7


def test_a_workload_that_is_not_there_is_refused_with_the_nearest_name():
    with pytest.raises(SpecError) as caught:
        workload("mnist-smal")
    assert str(caught.value) == "there is no workload 'mnist-smal'; did you mean 'mnist-small'?"


def test_options_that_are_not_given_have_their_defaults():
    assert workload("mlp").complete_options({"width": 8}) == {"depth": 4, "width": 8}


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(SpecError) as caught:
        workload("mlp").complete_options({"widht": 8})
    assert str(caught.value) == "workload mlp has no option 'widht'; did you mean 'width'?"


def test_an_option_for_a_workload_without_options_is_refused():
    with pytest.raises(SpecError, match="workload mnist-small has no option 'depth'; there are none"):
        workload("mnist-small").complete_options({"depth": 8})


@pytest.mark.parametrize("value", [0, -1, 2.5, "deep", True])
def test_an_option_of_the_wrong_kind_or_size_is_refused_with_an_example(value):
    with pytest.raises(SpecError) as caught:
        workload("mlp").complete_options({"depth": value})
    assert str(caught.value) == f"option depth of mlp cannot be {value!r}; give such as 4"


def test_starting_weights_come_from_the_seed_alone():
    layers = layers_of("mnist-small")
    one, again, other = (initial_weights(layers, MNIST, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["0_conv.kernel"], other["0_conv.kernel"])


def test_starting_weights_of_a_known_seed_never_change():
    first = initial_weights(layers_of("mnist-small"), MNIST, seed=0)["0_conv.kernel"].ravel()[:3]
    assert first.tolist() == pytest.approx([0.09728364, 0.13029811, 0.09931748], rel=1e-6)


def test_starting_weights_have_names_shapes_and_single_precision():
    weights = initial_weights(layers_of("mnist-small"), MNIST, seed=0)
    assert {name: array.shape for name, array in weights.items()} == {
        "0_conv.kernel": (3, 3, 1, 32),
        "0_conv.bias": (32,),
        "3_dense.kernel": (6272, 64),
        "3_dense.bias": (64,),
        "4_dense.kernel": (64, 10),
        "4_dense.bias": (10,),
    }
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_kernels_start_within_the_range_of_glorot_and_biases_at_zero():
    weights = initial_weights(layers_of("mnist-small"), MNIST, seed=0)
    limit = math.sqrt(6 / (6272 + 64))
    largest = np.abs(weights["3_dense.kernel"]).max()
    assert 0.99 * limit < largest <= np.float32(limit)
    assert not weights["3_dense.bias"].any()


def test_norms_start_with_scale_one():
    weights = initial_weights(layers_of("transformer", (6,), depth=1, width=8, heads=2), (6,), seed=0)
    assert (weights["1_block.norm1_scale"] == 1).all()
    assert (weights["2_norm.scale"] == 1).all()


def test_facts_follow_the_samples_through_the_layers():
    facts = model_facts(layers_of("mnist-small"), MNIST)
    assert [layer.name for layer in facts.layers] == ["0_conv", "1_maxpool", "2_flatten", "3_dense", "4_dense"]
    assert [layer.output_elements for layer in facts.layers] == [32 * 784, 6272, 6272, 64, 10]
    assert facts.forward_flops == 2 * 9 * 32 * 784 + 32 * 784 + 2 * 6272 * 64 + 2 * 64 * 10


def test_an_image_too_small_for_its_pooling_is_refused():
    with pytest.raises(SpecError, match="an image of 1 x 1 is too small to pool by 2"):
        parameters("mnist-large", shape=(1, 4, 4))


def test_relu_comes_after_the_pooling_of_the_layer_that_it_belongs_to():
    layers = (Conv(2), Conv(2), MaxPool(), MaxPool(), Flatten(), Dense(3, relu=True), Dense(2))
    assert relu_places(layers, MNIST) == {"0_conv": "0_conv", "3_maxpool": "1_conv", "5_dense": "5_dense"}
