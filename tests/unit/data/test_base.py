"""A data set cut to fewer samples, and pixels as numbers."""

import numpy as np

from paceline.data import data_source, data_sources
from paceline.data.base import DataSet, scale_pixels


def small_set():
    return DataSet(np.zeros((100, 1, 4, 4)), np.arange(100), np.zeros((20, 1, 4, 4)), np.arange(20), classes=None)


def test_the_shape_is_that_of_one_sample():
    assert small_set().input_shape == (1, 4, 4)


def test_a_cut_keeps_the_first_samples_and_the_test_set_in_proportion():
    cut = small_set().first(50)
    assert cut.train_targets.tolist() == list(range(50))
    assert cut.test_targets.tolist() == list(range(10))
    assert (len(cut.train_inputs), len(cut.test_inputs)) == (50, 10)


def test_a_cut_always_leaves_something_to_test_on():
    assert len(small_set().first(1).test_inputs) == 1


def test_asking_for_all_or_more_or_nothing_in_particular_gives_the_set_as_it_is():
    whole = small_set()
    assert whole.first(None) is whole
    assert whole.first(100) is whole
    assert whole.first(1000) is whole


def test_pixels_become_floats_from_zero_to_one_with_a_channel():
    pixels = scale_pixels(np.array([[[0, 255], [51, 102]]], np.uint8))
    assert pixels.shape == (1, 1, 2, 2)
    assert pixels.dtype == np.float32
    assert np.allclose(pixels.ravel(), [0.0, 1.0, 0.2, 0.4])


def test_every_source_is_found_by_its_own_name():
    assert {"mnist", "mnist-5k", "synthetic", "tokens"} <= data_sources().keys()
    assert all(data_source(name) is source for name, source in data_sources().items())
