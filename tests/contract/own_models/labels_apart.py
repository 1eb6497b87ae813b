"""Inputs by name, classes apart, and no loss of its own."""

from batches import TEST, TRAIN, named, samples  # noqa: F401


def data():
    return (*samples(TRAIN, 0), *samples(TEST, 1))
