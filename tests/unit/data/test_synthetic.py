"""Made-up images."""

import numpy as np
import pytest

from paceline.data import DataRequest
from paceline.data.synthetic import DATA, DEFAULT_TRAIN_SAMPLES, load

SMALL = DataRequest(seed=1, train_samples=40, input_shape=(3, 5, 6), classes=4)


def test_shape_classes_and_count_are_as_asked():
    data = load(SMALL)
    assert data.train_inputs.shape == (40, 3, 5, 6)
    assert data.train_inputs.dtype == np.float32
    assert data.train_targets.dtype == np.int64
    assert set(data.train_targets) <= {0, 1, 2, 3}
    assert data.classes == 4


def test_without_wishes_it_looks_like_mnist():
    data = load(DataRequest())
    assert data.train_inputs.shape == (DEFAULT_TRAIN_SAMPLES, 1, 28, 28)
    assert data.classes == 10


@pytest.mark.parametrize("shape", [(7,), (2, 3), (1, 4, 4)])
def test_any_number_of_dimensions_will_do(shape):
    assert load(DataRequest(train_samples=8, input_shape=shape)).input_shape == shape


def test_the_test_set_is_a_quarter_and_never_smaller_than_the_classes_up_to_ten():
    assert len(load(SMALL).test_inputs) == 10
    assert len(load(DataRequest(train_samples=1, classes=6)).test_inputs) == 6
    assert len(load(DataRequest(train_samples=8, classes=1000)).test_inputs) == 10
    assert len(load(DataRequest(train_samples=800, classes=1000)).test_inputs) == 200


def test_the_same_seed_makes_the_same_numbers_and_another_seed_others():
    again = load(SMALL)
    other = load(DataRequest(seed=2, train_samples=40, input_shape=(3, 5, 6), classes=4))
    assert np.array_equal(load(SMALL).train_inputs, again.train_inputs)
    assert not np.array_equal(load(SMALL).train_inputs, other.train_inputs)


def test_a_class_has_a_pattern_of_its_own_that_can_be_learned():
    data = load(DataRequest(train_samples=1000, classes=3))
    means = np.stack([data.train_inputs[data.train_targets == label].mean(axis=0) for label in range(3)])
    distances = ((data.test_inputs[:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(axis=1) == data.test_targets).mean() > 0.95


def test_the_source_says_how_many_samples_a_run_will_find():
    assert DATA.count(SMALL) == 40
    assert DATA.count(DataRequest()) == DEFAULT_TRAIN_SAMPLES


def test_targets_are_of_all_classes_even_if_there_are_fewer_samples():
    data = load(DataRequest(train_samples=8, classes=1000))
    assert data.classes == 1000
    assert max(*data.train_targets, *data.test_targets) > 500
