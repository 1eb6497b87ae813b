"""What a user's `data` returns: trees of arrays, their types kept, targets left out, and what is refused."""

import numpy as np
import pytest

from paceline.errors import ModelError
from paceline.workloads.user_data import data_set

IDS = np.arange(12).reshape(6, 2)


def refusal(returned):
    with pytest.raises(ModelError) as caught:
        data_set(returned, "net.py:build")
    return str(caught.value)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "int64", "bool", "float16", "float32"])
def test_types_are_kept(kind):
    array = np.ones((4, 2)).astype(kind)
    data = data_set((array, array[:, 0], array, array[:, 0]), "net.py:build")
    assert data.train_inputs.dtype == data.test_targets.dtype == np.dtype(kind)


def test_float64_becomes_single_precision():
    data = data_set((np.ones((4, 2)), np.ones(4), np.ones((4, 2)), np.ones(4)), "net.py:build")
    assert data.train_inputs.dtype == data.train_targets.dtype == np.float32


def test_nothing_is_copied_that_keeps_its_type():
    pixels, classes = np.zeros((4, 3, 8, 8), np.uint8), np.zeros(4, np.int64)
    data = data_set((pixels, classes, pixels, classes), "net.py:build")
    assert np.shares_memory(data.train_inputs, pixels)


@pytest.mark.parametrize(("targets", "classes"), [
    (np.array([0, 4], np.uint8), 5), (np.array([True, False]), 2), (np.ones(2), None), ((np.arange(2),), None),
])  # fmt: skip
def test_classes_are_known_of_whole_targets(targets, classes):
    assert data_set((IDS[:2], targets, IDS[:2], targets), "net.py:build").classes == classes


def test_two_dicts_are_inputs_whose_labels_are_the_targets():
    data = data_set(({"input_ids": IDS, "labels": IDS + 1}, {"input_ids": IDS[:2], "labels": IDS[:2] + 1}), "n")
    assert data.train_targets is data.train_inputs["labels"]
    assert (data.train_samples, data.test_samples) == (6, 2)
    assert data.classes == 13


def test_without_labels_the_inputs_are_their_own_targets():
    data = data_set((IDS, None, IDS, None), "net.py:build")
    assert data.train_targets is data.train_inputs
    assert data.classes is None


def test_fewer_samples_are_taken_from_every_array():
    data = data_set((({"a": IDS}, IDS[:, 0]), IDS, ({"a": IDS}, IDS[:, 0]), IDS), "net.py:build").first(3)
    assert data.train_inputs[0]["a"].tolist() == IDS[:3].tolist()
    assert len(data.train_inputs[1]) == len(data.train_targets) == data.train_samples == 3
    assert data.test_samples == 3


def test_the_digest_knows_names_types_and_values():
    def digest(**arrays):
        return data_set((arrays, IDS[:, 0], arrays, IDS[:, 0]), "net.py:build").digest()

    assert digest(a=IDS) == digest(a=IDS.copy())
    assert len({digest(a=IDS), digest(b=IDS), digest(a=IDS + 1), digest(a=IDS.astype(np.int32))}) == 4


def test_arrays_of_unlike_length_are_refused_by_name():
    returned = ({"ids": IDS, "mask": IDS[:4]}, IDS[:, 0], {"ids": IDS, "mask": IDS}, IDS[:, 0])
    assert refusal(returned) == (
        "data() of net.py:build returns train inputs of unlike length: 6 of ids, 4 of mask; return as many of each"
    )


def test_inputs_without_an_array_are_refused():
    assert refusal(({}, IDS, IDS, IDS)) == (
        "data() of net.py:build returns train inputs without an array; return at least one"
    )


def test_a_word_in_a_dict_is_refused():
    returned = ({"text": np.array(["a", "b"])}, IDS[:2], IDS, IDS)
    assert "data() of net.py:build returns <U1 of shape (2,); return arrays of numbers" in refusal(returned)
