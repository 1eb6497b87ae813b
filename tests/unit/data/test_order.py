"""Which samples are in which batch."""

import numpy as np
import pytest

from paceline.data.order import BatchOrder


def order(samples=100, copies=1, global_batch=16, seed=0):
    return BatchOrder(samples, copies, global_batch, seed)


def test_an_epoch_has_only_full_batches_and_drops_the_samples_left_over():
    assert order(samples=100, global_batch=16).steps_per_epoch == 6
    assert order(samples=100, global_batch=16).epoch(0).shape == (6, 16)


def test_a_batch_that_divides_the_samples_drops_none():
    assert sorted(order(samples=96, global_batch=16).epoch(0).ravel()) == list(range(96))


def test_no_sample_comes_twice_in_an_epoch():
    indices = order().epoch(0).ravel()
    assert len(set(indices)) == len(indices)


def test_other_samples_are_dropped_in_each_epoch():
    dropped = [frozenset(range(100)) - frozenset(order().epoch(epoch).ravel()) for epoch in range(4)]
    assert all(len(left) == 4 for left in dropped)
    assert len(set(dropped)) > 1


def test_the_order_depends_on_the_seed_and_the_epoch_alone():
    assert np.array_equal(order(seed=3).epoch(1), order(seed=3).epoch(1))
    assert not np.array_equal(order(seed=3).epoch(1), order(seed=3).epoch(2))
    assert not np.array_equal(order(seed=3).epoch(1), order(seed=4).epoch(1))


def test_seed_and_epoch_do_not_stand_in_for_each_other():
    assert not np.array_equal(order(seed=1).epoch(0), order(seed=0).epoch(1))


def test_the_order_of_a_known_seed_never_changes():
    assert order(samples=10, global_batch=5).epoch(0).tolist() == [[4, 6, 2, 7, 3], [5, 9, 0, 8, 1]]


def test_the_batch_size_does_not_change_the_order_of_the_samples():
    small, large = order(global_batch=10).epoch(0).ravel(), order(global_batch=50).epoch(0).ravel()
    assert np.array_equal(small, large)


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_the_shares_of_all_replicas_together_are_the_global_batch(replicas):
    shares = [order().share(0, replica, replicas) for replica in range(replicas)]
    assert np.array_equal(np.concatenate(shares, axis=1), order().epoch(0))


def test_a_share_is_contiguous_so_that_no_framework_has_to_copy_it():
    assert order().share(0, 1, 4).flags.c_contiguous


def test_copies_repeat_each_sample_as_often_as_asked():
    doubled = order(samples=48, copies=2, global_batch=16)
    assert doubled.steps_per_epoch == 6
    assert np.bincount(doubled.epoch(0).ravel()).tolist() == [2] * 48


def test_copies_are_repeated_indices_that_stay_within_the_data():
    indices = order(samples=7, copies=1000, global_batch=100).epoch(0)
    assert indices.dtype == np.int64
    assert (indices.min(), indices.max()) == (0, 6)


def test_copies_may_make_a_batch_that_is_larger_than_the_data():
    assert order(samples=10, copies=3, global_batch=30).epoch(0).shape == (1, 30)


def test_copies_are_mixed_and_not_one_after_the_other():
    first_half = order(samples=48, copies=2, global_batch=48).epoch(0)[0]
    assert len(set(first_half)) < 48


def test_a_run_of_epochs_does_each_in_full():
    assert list(order().schedule(epochs=3, steps=None)) == [(0, 6), (1, 6), (2, 6)]


@pytest.mark.parametrize(
    ("steps", "parts"), [(1, [(0, 1)]), (6, [(0, 6)]), (7, [(0, 6), (1, 1)]), (14, [(0, 6), (1, 6), (2, 2)])]
)
def test_a_run_of_steps_goes_through_as_many_epochs_as_it_needs(steps, parts):
    assert list(order().schedule(epochs=None, steps=steps)) == parts
