"""The part of MNIST that ships with Paceline."""

import numpy as np
import pytest

from paceline.data import DataRequest
from paceline.data.mnist import read_idx
from paceline.data.mnist_5k import DATA, load


@pytest.fixture(scope="module")
def whole():
    return load(DataRequest())


def test_it_has_5000_training_and_1000_test_images_of_28_by_28(whole):
    assert whole.train_inputs.shape == (5000, 1, 28, 28)
    assert whole.test_inputs.shape == (1000, 1, 28, 28)
    assert whole.train_inputs.dtype == np.float32
    assert whole.train_targets.dtype == np.int64
    assert whole.classes == 10


def test_every_digit_is_there_equally_often(whole):
    assert np.bincount(whole.train_targets).tolist() == [500] * 10
    assert np.bincount(whole.test_targets).tolist() == [100] * 10


def test_pixels_use_the_whole_range_from_zero_to_one(whole):
    assert whole.train_inputs.min() == 0.0
    assert whole.train_inputs.max() == 1.0


def test_a_smaller_part_is_its_beginning_and_has_all_digits(whole):
    part = load(DataRequest(train_samples=500))
    assert np.array_equal(part.train_inputs, whole.train_inputs[:500])
    assert len(part.test_inputs) == 100
    assert set(part.train_targets) == set(range(10))


@pytest.mark.parametrize(("asked", "have"), [(None, 5000), (500, 500), (9999, 5000)])
def test_the_source_says_how_many_samples_a_run_will_find(asked, have):
    request = DataRequest(train_samples=asked)
    assert DATA.count(request) == len(load(request).train_inputs) == have


def test_what_it_announces_is_what_it_holds(whole):
    assert DATA.shape == whole.input_shape
    assert DATA.classes == whole.classes


def test_every_image_and_label_is_one_of_mnist(whole, mnist_files):
    for part, images, labels in (
        ("train", whole.train_inputs, whole.train_targets),
        ("t10k", whole.test_inputs, whole.test_targets),
    ):
        pixels = read_idx(mnist_files / f"{part}-images-idx3-ubyte.gz")
        digits = read_idx(mnist_files / f"{part}-labels-idx1-ubyte.gz")
        original = {(image.tobytes(), int(digit)) for image, digit in zip(pixels, digits, strict=True)}
        shipped = np.rint(images * 255).astype(np.uint8)
        assert all((image.tobytes(), int(digit)) in original for image, digit in zip(shipped, labels, strict=True))
