"""Synthetic token sequences for language models: a random Markov chain, whose next token is partly predictable."""

import numpy as np

from paceline.data.base import DataRequest, DataSet, DataSource

DEFAULT_LENGTH, DEFAULT_VOCABULARY = 64, 256
DEFAULT_TRAIN_SAMPLES = 512
TRAIN_PER_TEST = 4
# Tokens that may follow each token; few successors make the chain learnable.
SUCCESSORS = 4


def load(request: DataRequest) -> DataSet:
    """Inputs are the first `length` tokens of a sequence, targets the same shifted by one."""
    generator = np.random.Generator(np.random.PCG64([request.seed, 0x70CE]))
    length, vocabulary = (request.input_shape or (DEFAULT_LENGTH,))[0], request.classes or DEFAULT_VOCABULARY
    train, test = count(request), test_count(request)
    followers = generator.integers(0, vocabulary, (vocabulary, SUCCESSORS))
    sequences = np.empty((train + test, length + 1), np.int64)
    sequences[:, 0] = generator.integers(0, vocabulary, train + test)
    for position in range(length):
        choices = generator.integers(0, SUCCESSORS, train + test)
        sequences[:, position + 1] = followers[sequences[:, position], choices]
    inputs, targets = sequences[:, :-1], sequences[:, 1:]
    return DataSet(inputs[:train], targets[:train], inputs[train:], targets[train:], vocabulary)


def count(request: DataRequest) -> int:
    """The number of training sequences, if the run sets none."""
    return request.train_samples or DEFAULT_TRAIN_SAMPLES


def test_count(request: DataRequest) -> int:
    """The number of test sequences."""
    return max(1, count(request) // TRAIN_PER_TEST)


DATA = DataSource(
    name="tokens",
    about="seeded token sequences from a Markov chain, for the transformer",
    count=count,
    load=load,
    test_count=test_count,
    generated=True,
)
