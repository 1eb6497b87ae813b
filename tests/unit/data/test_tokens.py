"""Made-up token sequences."""

import numpy as np

from paceline.data import DataRequest
from paceline.data.tokens import DATA, DEFAULT_TRAIN_SAMPLES, SUCCESSORS, load

SMALL = DataRequest(seed=1, train_samples=40, input_shape=(12,), classes=30)


def test_length_vocabulary_and_count_are_as_asked():
    data = load(SMALL)
    assert data.train_inputs.shape == data.train_targets.shape == (40, 12)
    assert data.test_inputs.shape == (10, 12)
    assert data.train_inputs.dtype == data.train_targets.dtype == np.int64
    assert data.train_inputs.min() >= 0
    assert data.train_inputs.max() < 30
    assert data.classes == 30


def test_without_wishes_it_has_512_sequences_of_64_tokens_from_256():
    data = load(DataRequest())
    assert data.train_inputs.shape == (DEFAULT_TRAIN_SAMPLES, 64)
    assert data.classes == 256


def test_targets_are_the_inputs_shifted_by_one():
    data = load(SMALL)
    assert np.array_equal(data.train_targets[:, :-1], data.train_inputs[:, 1:])


def test_each_token_has_few_successors_in_training_and_test_alike():
    data = load(SMALL)
    followers = {}
    for inputs, targets in ((data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)):
        for token, successor in zip(inputs.ravel(), targets.ravel(), strict=True):
            followers.setdefault(int(token), set()).add(int(successor))
    assert max(map(len, followers.values())) <= SUCCESSORS


def test_the_same_seed_makes_the_same_tokens_and_another_seed_others():
    other = load(DataRequest(seed=2, train_samples=40, input_shape=(12,), classes=30))
    assert np.array_equal(load(SMALL).train_inputs, load(SMALL).train_inputs)
    assert not np.array_equal(load(SMALL).train_inputs, other.train_inputs)


def test_one_sequence_still_leaves_one_to_test_on():
    assert len(load(DataRequest(train_samples=1)).test_inputs) == 1


def test_the_source_says_how_many_samples_a_run_will_find():
    assert DATA.count(SMALL) == 40
    assert DATA.count(DataRequest()) == DEFAULT_TRAIN_SAMPLES
