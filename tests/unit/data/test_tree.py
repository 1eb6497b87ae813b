"""Trees of arrays: gone through, cut, called with and told in words."""

import numpy as np
import pytest

from paceline.data.tree import call, chunks, describe, leaves, length, map_tree, named_leaves, sample_elements, take

TREE = {"ids": np.arange(12).reshape(6, 2), "more": (np.arange(6), np.ones((6, 3, 4), np.float32))}


def test_an_array_is_a_tree_of_one_leaf_without_a_name():
    array = np.ones((3, 2))
    assert [name for name, _ in named_leaves(array)] == [""]
    assert leaves(array)[0] is array


def test_leaves_have_the_way_to_them_as_their_names():
    assert [name for name, _ in named_leaves(TREE)] == ["ids", "more.0", "more.1"]


def test_mapping_keeps_the_form():
    doubled = map_tree(lambda leaf: leaf * 2, TREE)
    assert list(doubled) == ["ids", "more"]
    assert isinstance(doubled["more"], tuple)
    assert (doubled["ids"] == TREE["ids"] * 2).all()


def test_several_trees_are_mapped_side_by_side():
    assert (map_tree(np.add, TREE, TREE)["more"][0] == np.arange(6) * 2).all()


def test_trees_of_unlike_form_are_not_mapped_together():
    with pytest.raises(ValueError):
        map_tree(np.add, (np.ones(1), np.ones(1)), (np.ones(1),))


def test_samples_are_taken_from_every_array():
    some = take(TREE, np.array([5, 0]))
    assert some["ids"].tolist() == [[10, 11], [0, 1]]
    assert some["more"][0].tolist() == [5, 0]
    assert length(take(TREE, slice(1, 4))) == 3


def test_chunks_are_equal_stretches_in_order():
    assert [part["more"][0].tolist() for part in chunks(TREE, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_a_model_is_called_with_one_array_with_a_tuples_parts_or_with_a_dicts_names():
    def model(*places, **names):
        return places, names

    assert call(model, 1) == ((1,), {})
    assert call(model, (1, {"a": 2})) == ((1, {"a": 2}), {})
    assert call(model, {"a": 1, "b": 2}) == ((), {"a": 1, "b": 2})


def test_numbers_of_one_sample_are_counted_over_all_arrays():
    assert sample_elements(TREE) == 2 + 1 + 12


def test_a_tree_in_words_has_shapes_and_types():
    assert describe(np.ones((3, 2, 4), np.uint8)) == "2x4 uint8"
    assert describe((np.ones(3), np.ones((3, 4), np.float32))) == "(one number float64, 4 float32)"
    assert describe(TREE) == "ids 2 int64, more.0 one number int64, more.1 3x4 float32"
