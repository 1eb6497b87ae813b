"""What a user's `data` returns that is not arrays in memory: which source it is, and what is refused."""

import sys
import tracemalloc
from types import ModuleType

import numpy as np
import pytest

from paceline.data.sources import LoadedData, stack_samples
from paceline.errors import ModelError
from paceline.workloads.user_data import data_set
from paceline.workloads.user_sources import loaded_data

LABEL = "net.py:build"


class Samples:
    """A map-style data set."""

    def __init__(self, count=20):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return np.full(2, row), row % 3


def refusal(returned):
    with pytest.raises(ModelError) as caught:
        loaded_data(returned, None, LABEL)
    return str(caught.value)


def hugging_face(columns):
    """A stand-in for a data set of the library `datasets`, which knows it by its module."""

    class Columns:
        features = {"label": type("ClassLabel", (), {"num_classes": 3})()}

        def __len__(self):
            return len(columns["x"])

        def with_format(self, kind):
            assert kind == "numpy"
            return self

        def __getitem__(self, rows):
            return {name: np.array([values[row] for row in rows]) for name, values in columns.items()}

        def __getitems__(self, rows):
            return [{name: values[row] for name, values in columns.items()} for row in rows]

    Columns.__module__ = "datasets.arrow_dataset"
    return Columns()


def test_a_pair_of_data_sets_is_read_by_number():
    data = loaded_data((Samples(), Samples(5)), None, LABEL)
    assert (data.kind, data.train_samples, data.test_samples) == ("dataset", 20, 5)
    inputs, targets = data.train.read(np.array([4, 1]), stack_samples)
    assert inputs.tolist() == [[4, 4], [1, 1]] and targets.tolist() == [1, 1]


def test_a_data_set_that_gives_several_samples_at_once_is_asked_for_them():
    source = Samples()
    source.__getitems__ = lambda rows: [(np.array(rows), 0)] * 2
    assert loaded_data((source, source), None, LABEL).train.read(np.array([5, 6]), stack_samples)[0].tolist() == [
        [5, 6], [5, 6],
    ]  # fmt: skip


def test_a_pair_of_functions_opens_streams():
    data = loaded_data((lambda rank, workers, batch: [], lambda: []), None, LABEL)
    assert data.kind == "stream" and data.train.takes == {"rank", "workers", "batch"} and not data.test.takes


def test_columns_of_a_hugging_face_data_set_are_a_batch_and_its_classes_are_known():
    columns = hugging_face({"x": [1, 2, 3], "label": [0, 1, 2]})
    data = loaded_data({"train": columns, "validation": columns}, None, LABEL)
    inputs, targets = data.train.read(np.array([2, 0]), stack_samples)
    assert inputs["x"].tolist() == [3, 1] and targets.tolist() == [2, 0] and data.classes == 3


def test_a_collate_function_is_given_the_rows_of_a_hugging_face_data_set():
    columns = hugging_face({"x": [1, 2, 3], "label": [0, 1, 2]})
    collate = lambda rows: (np.array([row["x"] for row in rows]), np.zeros(len(rows)))  # noqa: E731
    data = loaded_data((columns, columns), collate, LABEL)
    assert data.train.read(np.array([1, 2]), stack_samples)[0].tolist() == [2, 3]


def test_a_folder_without_the_library_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refusal(tmp_path) == (
        f"data() of net.py:build returns the folder {tmp_path} of a Hugging Face data set, and datasets is not "
        "installed; pip install datasets"
    )


def test_a_folder_that_is_no_data_set_is_refused(monkeypatch, tmp_path):
    library = ModuleType("datasets")

    def load_from_disk(path):
        raise FileNotFoundError(f"Directory {path} not found")

    library.load_from_disk = load_from_disk
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert f"which is no folder of a Hugging Face data set (Directory {tmp_path} not found)" in refusal(tmp_path)
    assert "data() of net.py:build returns absent/rows, which is not there" in refusal("absent/rows")


def test_a_data_set_without_a_test_split_is_refused():
    columns = hugging_face({"x": [1]})
    assert "returns a data set with train; it needs a split train and a split test" in refusal({"train": columns})


@pytest.mark.parametrize("source", [iter([1]), (number for number in range(3))])
def test_what_can_only_be_gone_through_must_be_made_in_each_worker(source):
    said = refusal((source, source))
    assert "of which each worker needs one of its own; return a function train(rank, workers, batch)" in said


def test_two_of_unlike_kinds_are_refused():
    said = refusal((Samples(), lambda: []))
    assert "returns a data set for train and a function for test; return two of a kind" in said


def test_a_data_set_without_samples_is_refused():
    assert refusal((Samples(0), Samples())) == "train of data() of net.py:build has no sample; return at least one"


@pytest.mark.parametrize("returned", [(np.ones(2), np.ones(2)), ([1], [2]), 7, ({"a": np.ones(2)},) * 2])
def test_arrays_are_left_to_others(returned):
    assert loaded_data(returned, None, LABEL) is None


@pytest.fixture
def mapped(tmp_path):
    """Arrays in a file of 64 MB, and classes in another."""
    inputs = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (4000, 2000))
    targets = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.uint8, (4000,))
    targets[7] = 9
    inputs.flush()
    del inputs
    return np.load(tmp_path / "x.npy", mmap_mode="r"), targets


def test_mapped_files_are_read_row_by_row(mapped):
    inputs, targets = mapped
    data = data_set((inputs[:3000], targets[:3000], inputs[3000:], targets[3000:]), LABEL)
    assert isinstance(data, LoadedData) and data.kind == "memmap"
    assert (data.train_samples, data.test_samples, data.classes) == (3000, 1000, 10)
    assert data.train.read(np.array([7, 8]), stack_samples)[1].tolist() == [9, 0]
    # Types are those of the file; only what is read is cast.
    assert data.train.read(np.array([7]), stack_samples)[0].dtype == np.float64
    assert data.trial.train_inputs.dtype == np.float32


def test_a_mapped_file_is_never_copied_whole(mapped):
    inputs, targets = mapped
    tracemalloc.start()
    try:
        data = data_set((inputs, targets, inputs, targets), LABEL)
        data.digest()
        data.train.read(np.arange(256), stack_samples)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < inputs.nbytes / 4


def test_labels_among_mapped_inputs_are_read_once(mapped):
    inputs, targets = mapped
    data = data_set(({"input_ids": inputs, "labels": targets}, {"input_ids": inputs, "labels": targets}), LABEL)
    batch, labels = data.train.read(np.array([7]), stack_samples)
    assert labels is batch["labels"]
