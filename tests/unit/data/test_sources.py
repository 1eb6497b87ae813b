"""Data that are read while training goes on: batches by number, streams in their own order, and what is refused."""

import numpy as np
import pytest

from paceline.data.sources import (
    TRIAL_SAMPLES,
    IndexedSource,
    LoadedData,
    StreamSource,
    as_batch,
    numbers_of,
    stack_samples,
    stream_parameters,
)
from paceline.errors import ModelError


def samples_of(count, fetched=None):
    """Samples whose inputs are their own numbers; what is read is noted."""

    def fetch(rows):
        if fetched is not None:
            fetched.extend(rows.tolist())
        return [(np.full(3, row, np.uint8), row % 2) for row in rows]

    return IndexedSource(count, fetch)


def stream_of(count, **fields):
    """A function that gives the numbers of its worker's part in batches, the last one smaller."""

    def batches(rank, workers, batch, epoch=0):
        mine = np.arange(rank, count, workers) + 1000 * epoch
        return ((mine[start : start + batch], mine[start : start + batch]) for start in range(0, len(mine), batch))

    return StreamSource(batches, "train of data() of net.py:build", stream_parameters(batches, "train"), **fields)


def complaint(function, *arguments, **named):
    with pytest.raises(ModelError) as caught:
        function(*arguments, **named)
    return str(caught.value)


def test_samples_are_read_by_their_numbers_and_put_together():
    inputs, targets = samples_of(10).read(np.array([7, 2]), stack_samples)
    assert inputs.tolist() == [[7, 7, 7], [2, 2, 2]] and inputs.dtype == np.uint8
    assert targets.tolist() == [1, 0]


def test_a_function_of_the_users_makes_a_batch_where_there_is_one():
    source = IndexedSource(4, list, collate=lambda samples: {"input_ids": np.array(samples), "label": np.ones(2)})
    inputs, targets = source.read(np.array([3, 1]), stack_samples)
    assert sorted(inputs) == ["input_ids", "labels"] and inputs["input_ids"].tolist() == [3, 1]
    assert targets is inputs["labels"]


def test_lists_of_samples_become_tuples_and_dicts_stay_dicts():
    inputs, targets = as_batch([{"a": [1, 2]}, (3, 4)])
    assert (inputs, targets) == ({"a": (1, 2)}, (3, 4))


def test_a_dict_without_labels_is_its_own_target():
    inputs, targets = as_batch({"images": np.ones(2)})
    assert targets is inputs


@pytest.mark.parametrize(("value", "words"), [
    (np.ones(3), "a batch of data() is ndarray; give a pair (inputs, targets)"),
    ((1, 2, 3), "a batch of data() is tuple of 3 parts; give a pair (inputs, targets), or a dict of inputs"),
])  # fmt: skip
def test_what_is_neither_a_pair_nor_a_dict_is_refused(value, words):
    assert words in complaint(as_batch, value)


def test_types_are_kept_and_float64_becomes_single_precision():
    inputs, targets = numbers_of(({"a": np.ones((2, 1), np.uint8), "b": np.ones(2)}, np.ones(2, np.int16)))
    assert (inputs["a"].dtype, inputs["b"].dtype, targets.dtype) == (np.uint8, np.float32, np.int16)


def test_what_is_no_number_is_refused_by_name():
    said = complaint(numbers_of, ({"text": np.array(["a", "b"])}, np.ones(2)))
    assert "holds <U1 of shape (2,) as text; give arrays of numbers" in said and "collate(samples)" in said


def test_arrays_of_unlike_length_are_refused():
    assert "have 2 and 3 samples; give as many of each" in complaint(numbers_of, (np.ones(2), np.ones(3)))


def test_samples_of_unlike_shape_ask_for_a_collate_function():
    said = complaint(stack_samples, [(np.ones(2), 0), (np.ones(3), 1)])
    assert "cannot be put together" in said and "give a function collate(samples)" in said


def test_each_worker_gets_its_own_part_of_a_stream():
    parts = [
        np.concatenate([inputs for inputs, _ in source.full_batches(source.opened(2, rank=rank, workers=2), 2)])
        for source in [stream_of(11)]
        for rank in (0, 1)
    ]
    assert parts[0].tolist() == [0, 2, 4, 6, 8, 10] and parts[1].tolist() == [1, 3, 5, 7]


def test_a_stream_that_ends_is_opened_anew_for_the_next_epoch():
    batches = stream_of(5).endless(2, 0, rank=0, workers=1)
    read = [next(batches)[0].tolist() for _ in range(4)]
    assert read == [[0, 1], [2, 3], [1000, 1001], [1002, 1003]]


def test_what_can_be_gone_through_again_is_opened_once():
    opened = []

    def loader(batch):
        opened.append(batch)
        return [(np.arange(batch), np.arange(batch))]

    source = StreamSource(loader, "train", stream_parameters(loader, "train"))
    reused = source.opened(2)
    assert source.starts_anew(reused) and not source.starts_anew(iter(reused))
    batches = source.endless(2, 0, reused)
    assert [next(batches)[0].tolist() for _ in range(3)] == [[0, 1]] * 3 and opened == [2]


def test_a_stream_that_asks_for_its_epoch_is_opened_for_each():
    assert not stream_of(4).starts_anew([])


def test_batches_of_another_size_are_refused():
    source = StreamSource(lambda: [(np.ones(3), np.ones(3))], "train of data() of net.py:build")
    said = complaint(list, source.full_batches(source.opened(4), 4))
    assert said == (
        "train of data() of net.py:build gives a batch of 3 samples, and a worker trains on 4 in a step; take the "
        "parameter batch and give batches of as many"
    )


def test_an_empty_stream_is_refused_and_does_not_spin():
    source = StreamSource(lambda: [], "train")
    assert "train gives no batch of 4 samples; use a smaller batch" in complaint(next, source.endless(4, 0))


def test_a_function_is_given_what_it_asks_for_by_name():
    def opened(rank, workers, batch=1, *, seed=0):
        return rank, workers, batch, seed

    takes = stream_parameters(opened, "train")
    assert takes == {"rank", "workers", "batch", "seed"}
    assert StreamSource(opened, "train", takes).opened(8, rank=1, workers=2, epoch=5, seed=3) == (1, 2, 8, 3)
    assert "loader_workers" in stream_parameters(lambda **fields: fields, "train")


def test_a_function_that_wants_something_else_is_refused():
    said = complaint(stream_parameters, lambda rank, shards: None, "train of data() of net.py:build")
    assert "train of data() of net.py:build wants a parameter shards, which nobody has; it may take rank" in said


def test_only_a_few_samples_are_read_to_try_a_model():
    fetched = []
    data = LoadedData("dataset", samples_of(1000, fetched), samples_of(100))
    assert data.trial.train_samples == TRIAL_SAMPLES and data.trial is data.trial
    assert fetched == list(range(TRIAL_SAMPLES))
    assert data.input_shape == (3,) and data.train_samples == 1000


def test_a_cut_leaves_fewer_samples_and_test_samples_in_proportion():
    data = LoadedData("dataset", samples_of(1000), samples_of(100)).first(100)
    assert (data.train_samples, data.test_samples) == (100, 10)
    assert data.first(None) is data


def test_a_stream_has_as_many_samples_as_it_or_the_run_says():
    data = LoadedData("stream", stream_of(64), stream_of(8))
    assert data.train_samples is None and data.first(32).train_samples == 32 and not data.is_indexed
    assert LoadedData("stream", stream_of(64, samples=64), stream_of(8)).train_samples == 64
    assert data.trial.train_samples == TRIAL_SAMPLES


def test_the_length_of_a_stream_is_that_of_the_loader_that_is_opened():
    class Loader(list):
        dataset = range(100)

    batches = Loader([(np.zeros(8), np.zeros(8))])
    data = LoadedData("stream", StreamSource(lambda: batches, "train"), StreamSource(lambda: list(batches), "test"))
    assert data.trial.train_samples == TRIAL_SAMPLES
    assert (data.train_samples, data.test_samples) == (100, TRIAL_SAMPLES)


def test_the_digest_is_of_some_samples_and_tells_data_apart():
    fetched = []
    data = LoadedData("dataset", samples_of(10_000, fetched), samples_of(10))
    assert data.digest() == LoadedData("dataset", samples_of(10_000), samples_of(10)).digest()
    assert len(fetched) == 256 and fetched[0] == 0 and fetched[-1] == 9999
    assert data.digest() != LoadedData("dataset", samples_of(10_001), samples_of(10)).digest()
    assert LoadedData("stream", stream_of(8), stream_of(8)).digest() is None
