"""Synthetic images of any shape and class count: a fixed pattern per class plus noise, which a model can learn."""

import numpy as np

from paceline.data.base import DataRequest, DataSet, DataSource

DEFAULT_SHAPE, DEFAULT_CLASSES = (1, 28, 28), 10
DEFAULT_TRAIN_SAMPLES = 2048
TRAIN_PER_TEST = 4
# The test set has a sample for each class, but of a thousand classes not a thousand large images for a short run.
MOST_FOR_CLASSES = 10
# Patterns and noise have unit variance; at this ratio a small network learns within an epoch but not at once.
NOISE_OVER_PATTERN = 2.0


def load(request: DataRequest) -> DataSet:
    """Generates the samples; they depend on the seed alone."""
    generator = np.random.Generator(np.random.PCG64([request.seed, 0x5EED]))
    shape, classes = request.input_shape or DEFAULT_SHAPE, request.classes or DEFAULT_CLASSES
    train, test = count(request), test_count(request)
    # No more patterns than there are samples: of more classes, some share one.
    different = min(classes, train + test)
    patterns = generator.standard_normal((different, *shape), dtype=np.float32)
    targets = generator.integers(0, classes, train + test, dtype=np.int64)
    inputs = generator.standard_normal((train + test, *shape), dtype=np.float32) * np.float32(NOISE_OVER_PATTERN)
    inputs += patterns[targets % different]
    return DataSet(inputs[:train], targets[:train], inputs[train:], targets[train:], classes)


def count(request: DataRequest) -> int:
    """The number of training samples, if the run sets none."""
    return request.train_samples or DEFAULT_TRAIN_SAMPLES


def test_count(request: DataRequest) -> int:
    """The number of test samples."""
    return max(min(request.classes or DEFAULT_CLASSES, MOST_FOR_CLASSES), count(request) // TRAIN_PER_TEST)


DATA = DataSource(
    name="synthetic",
    about="seeded, learnable images of any shape and class count",
    count=count,
    load=load,
    test_count=test_count,
    generated=True,
)
