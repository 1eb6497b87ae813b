"""What the `data` function of a user's file returns where that is not arrays in memory: sources that are read.

A pair (train, test) of sources, each of them samples by number (a map-style data set), a function that opens a stream
of batches, or a tf.data.Dataset; or the folder of a Hugging Face data set; or four trees some of whose arrays are
numpy.memmap.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.order import Indices
from paceline.data.sources import (
    LABEL,
    LABELS,
    Collate,
    IndexedSource,
    LoadedData,
    SourceKind,
    StreamSource,
    stream_parameters,
)
from paceline.data.tree import Tree, leaves, length, take
from paceline.errors import ModelError

PARTS = ("train", "test")
# Splits of a Hugging Face data set that are tested on, the first that is there.
TEST_SPLITS = ("test", "validation")
_PAIR = 2


def loaded_data(returned: Any, collate: Collate | None, label: str) -> LoadedData | None:
    """The sources that the user's function returned; None where it returned something else, such as arrays."""
    if isinstance(returned, str | Path):
        returned = _load_folder(Path(returned), label)
    if isinstance(returned, dict) and returned and all(map(_is_hugging_face, returned.values())):
        returned = _splits(returned, label)
    if not isinstance(returned, tuple | list) or len(returned) != _PAIR:
        return None
    kinds = [_kind(source) for source in returned]
    for part, source, kind in zip(PARTS, returned, kinds, strict=True):
        if kind is None and _is_iterable_alone(source):
            raise ModelError(
                f"data() of {label} returns a {type(source).__name__} for {part}, of which each worker needs one of "
                f"its own; return a function {part}(rank, workers, batch) that makes it"
            )
    if None in kinds:
        return None
    if kinds[0] != kinds[1]:
        raise ModelError(
            f"data() of {label} returns {_WORDS[str(kinds[0])]} for train and {_WORDS[str(kinds[1])]} for test; "
            f"return two of a kind"
        )
    kind = kinds[0]
    assert kind is not None
    make = {"dataset": _indexed, "stream": _stream, "tf.data": _tf_stream}[kind]
    named = zip(PARTS, returned, strict=True)
    train, test = (make(source, collate, f"{part} of data() of {label}") for part, source in named)
    return LoadedData(kind, train, test, _class_count(returned[0]))


_WORDS = {"dataset": "a data set", "stream": "a function", "tf.data": "a tf.data.Dataset"}


def _kind(source: Any) -> SourceKind | None:
    if type(source).__module__.partition(".")[0] == "tensorflow" and hasattr(source, "element_spec"):
        return "tf.data"
    if isinstance(source, np.ndarray | dict | str | list | tuple) or hasattr(source, "__array__"):
        return None
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return "dataset"
    return "stream" if callable(source) and not hasattr(source, "__iter__") else None


def _is_iterable_alone(source: Any) -> bool:
    """Whether it can only be gone through: a DataLoader, an IterableDataset, a generator."""
    is_arrays = isinstance(source, dict | list | tuple | str) or hasattr(source, "__array__")
    return hasattr(source, "__iter__") and not is_arrays


def _indexed(source: Any, collate: Collate | None, what: str) -> IndexedSource:
    samples = len(source)
    if not samples:
        raise ModelError(f"{what} has no sample; return at least one")
    if _is_hugging_face(source):
        if collate is not None:
            return IndexedSource(samples, lambda rows: source.__getitems__(rows.tolist()), collate=collate)
        columns = source.with_format("numpy")
        return IndexedSource(samples, lambda rows: columns[rows.tolist()], gives_batches=True)
    several = getattr(source, "__getitems__", None)
    if callable(several):
        return IndexedSource(samples, lambda rows: several(rows.tolist()), collate=collate)
    return IndexedSource(samples, lambda rows: [source[row] for row in rows.tolist()], collate=collate)


def _stream(source: Callable[..., Any], _collate: Collate | None, what: str) -> StreamSource:
    takes = stream_parameters(source, what)
    samples = getattr(source, "samples", None)
    return StreamSource(source, what, takes, int(samples) if samples is not None else None)


def _tf_stream(source: Any, _collate: Collate | None, what: str) -> StreamSource:
    """A tf.data.Dataset of samples, or of batches, which are then cut anew."""
    import tensorflow as tf

    shapes = [spec.shape for spec in tf.nest.flatten(source.element_spec)]
    batched = all(shape.rank and shape[0] is None for shape in shapes)
    known = int(source.cardinality())

    def batches(rank: int, workers: int, batch: int) -> Iterator[Any]:
        share = source.shard(workers, rank)
        # A smaller last batch is tested on, and left out of training by who reads it.
        even = share.rebatch(batch) if batched else share.batch(batch)
        return even.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()  # type: ignore[no-any-return]

    # Of batches the last may be smaller.
    size = len(tf.nest.flatten(next(iter(source)))[0]) if batched and known > 0 else 1
    samples = None if known < 0 else max(1, known - 1) * size if batched else known
    return StreamSource(batches, what, frozenset({"rank", "workers", "batch"}), samples)


def _is_hugging_face(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "with_format")


def _load_folder(path: Path, label: str) -> Any:
    """The data set that was saved in a folder by `save_to_disk`."""
    if not path.exists():
        raise ModelError(
            f"data() of {label} returns {path}, which is not there; return a folder that save_to_disk of Hugging "
            f"Face's datasets wrote"
        )
    try:
        from datasets import load_from_disk
    except ImportError:
        raise ModelError(
            f"data() of {label} returns the folder {path} of a Hugging Face data set, and datasets is not installed; "
            f"pip install datasets"
        ) from None
    try:
        return load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise ModelError(
            f"data() of {label} returns {path}, which is no folder of a Hugging Face data set ({error}); "
            f"return one that save_to_disk wrote"
        ) from None


def _splits(splits: dict[str, Any], label: str) -> tuple[Any, Any]:
    test = next((name for name in TEST_SPLITS if name in splits), None)
    if "train" not in splits or test is None:
        raise ModelError(
            f"data() of {label} returns a data set with {', '.join(splits)}; it needs a split train and a split test "
            f"or validation"
        )
    return splits["train"], splits[test]


def _class_count(source: Any) -> int | None:
    """Classes of the labels, where a Hugging Face data set names them."""
    features = getattr(source, "features", None) or {}
    if not _is_hugging_face(source):
        return None
    counts = (getattr(features.get(name), "num_classes", None) for name in (LABELS, LABEL))
    return next((int(count) for count in counts if count is not None), None)


def is_mapped(tree: Tree) -> bool:
    """Whether an array of the tree lies in a file that is mapped into memory."""
    return any(is_memmap(leaf) for leaf in leaves(tree))


def is_memmap(array: Any) -> bool:
    """Whether an array lies in a file that is mapped into memory."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def mapped_data(train: tuple[Tree, Tree], test: tuple[Tree, Tree], classes: int | None) -> LoadedData:
    """Arrays in mapped files as sources: of each batch only its own samples are read."""
    return LoadedData("memmap", _rows_of(*train), _rows_of(*test), classes)


def _rows_of(inputs: Tree, targets: Tree) -> IndexedSource:
    def fetch(rows: Indices) -> tuple[Tree, Tree]:
        batch = take(inputs, rows)
        # Targets that are the inputs, or among them, are read once.
        if targets is inputs:
            return batch, batch
        same = [name for name, leaf in inputs.items() if leaf is targets] if isinstance(inputs, dict) else []
        return batch, batch[same[0]] if same else take(targets, rows)

    return IndexedSource(length(inputs), fetch, gives_batches=True)
