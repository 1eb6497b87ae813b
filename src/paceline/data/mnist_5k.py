"""A class-balanced part of MNIST that ships with Paceline: 500 training and 100 test images of each digit.

`mnist_5k.xz` holds, in this order, as bytes: training images, training labels, test images, test labels.
`tools/make_mnist_5k.py` wrote it; `mnist_5k.txt` beside it says where the images come from.
"""

import lzma
from importlib import resources

import numpy as np

from paceline.data.base import DataRequest, DataSet, DataSource, scale_pixels, test_share

TRAIN_SAMPLES, TEST_SAMPLES = 5_000, 1_000
SIDE = 28


def load(request: DataRequest) -> DataSet:
    """The arrays from the file that ships with Paceline."""
    packed = (resources.files("paceline.data") / "mnist_5k.xz").read_bytes()
    raw = np.frombuffer(lzma.decompress(packed), np.uint8)
    pixels = SIDE * SIDE
    ends = np.cumsum([TRAIN_SAMPLES * pixels, TRAIN_SAMPLES, TEST_SAMPLES * pixels])
    train_images, train_labels, test_images, test_labels = np.split(raw, ends)
    whole = DataSet(
        scale_pixels(train_images.reshape(-1, SIDE, SIDE)), train_labels.astype(np.int64),
        scale_pixels(test_images.reshape(-1, SIDE, SIDE)), test_labels.astype(np.int64), classes=10,
    )  # fmt: skip
    return whole.first(request.train_samples)


DATA = DataSource(
    name="mnist-5k",
    about="5,000 + 1,000 digits of MNIST, class-balanced, ships with Paceline",
    count=lambda request: min(TRAIN_SAMPLES, request.train_samples or TRAIN_SAMPLES),
    load=load,
    test_count=lambda request: test_share(TEST_SAMPLES, TRAIN_SAMPLES, request),
    shape=(1, SIDE, SIDE),
    classes=10,
)
