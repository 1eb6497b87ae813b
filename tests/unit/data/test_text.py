"""The text that ships with Paceline, as tokens."""

import numpy as np
import pytest

from paceline.data import DataRequest
from paceline.data.text import DATA, TEST_BYTES, TRAIN_BYTES, load, text
from paceline.errors import SpecError
from paceline.plan import complete
from paceline.spec import RunSpec


def test_it_is_the_book_from_its_first_sentence():
    assert text().startswith(b"CHAPTER 1. Loomings.\n\nCall me Ishmael.")
    assert len(text()) >= TRAIN_BYTES + TEST_BYTES


def test_samples_follow_each_other_and_targets_are_the_next_bytes():
    data = load(DataRequest(input_shape=(50,)))
    assert bytes(data.train_inputs[:3].astype(np.uint8).ravel()) == text()[:150]
    assert bytes(data.train_targets[:3].astype(np.uint8).ravel()) == text()[1:151]
    assert data.train_inputs.dtype == data.train_targets.dtype == np.int64
    assert data.classes == 256


def test_what_is_tested_on_is_the_end_of_the_text_which_no_training_sample_has():
    data = load(DataRequest(input_shape=(50,)))
    assert data.train_inputs.size <= TRAIN_BYTES
    assert bytes(data.test_inputs[0].astype(np.uint8)) == text()[-TEST_BYTES:][:50]


def test_without_wishes_a_sample_has_64_bytes():
    data = load(DataRequest())
    assert data.train_inputs.shape[1:] == data.test_inputs.shape[1:] == (64,)


@pytest.mark.parametrize("request_", [DataRequest(), DataRequest(input_shape=(1024,)), DataRequest(train_samples=100)])
def test_the_source_says_how_many_samples_a_run_will_find(request_):
    data = load(request_)
    assert DATA.count(request_) == len(data.train_inputs)
    assert DATA.test_count(request_) == len(data.test_inputs)


def test_sequences_longer_than_what_is_tested_on_are_refused_with_what_to_do():
    with pytest.raises(
        SpecError, match="sequences of 40,000 were asked for, and text has 36,000 bytes to test on; use"
    ):
        load(DataRequest(input_shape=(40_000,)))


@pytest.mark.parametrize("workload", ["transformer", "gpt", "llama", "mixtral"])
def test_models_of_tokens_train_on_it_with_a_vocabulary_of_bytes(workload):
    spec = complete(RunSpec(workload=workload, dataset="text", global_batch=2, steps=1))
    assert spec.dataset == "text"
    assert spec.classes is None


def test_another_vocabulary_is_refused():
    with pytest.raises(SpecError, match="classes 100 was asked for, but text has 256"):
        complete(RunSpec(workload="transformer", dataset="text", classes=100, global_batch=2, steps=1))
