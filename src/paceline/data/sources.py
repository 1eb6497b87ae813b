"""Data that are read while training goes on: by the numbers of their samples, or as a stream in an order of its own.

A batch is a pair of trees (inputs, targets), or a dict of inputs with its `labels` inside. What a source gives may be
arrays of NumPy or tensors of a framework; `numbers_of` makes arrays of them.
"""

import inspect
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from paceline.data.base import EVALUATION_BATCH, DataRequest, DataSet, test_share
from paceline.data.order import Indices
from paceline.data.tree import Tree, leaves, length, map_tree, named_leaves, take
from paceline.errors import ModelError

# How data come: whole in memory, in files that are mapped into it, as a data set of samples, as a stream of batches.
SourceKind = Literal["arrays", "memmap", "dataset", "stream", "tf.data"]
# What the kinds are called in messages.
SOURCE_WORDS: dict[SourceKind, str] = {
    "arrays": "arrays in memory",
    "memmap": "memory-mapped files",
    "dataset": "a data set of samples",
    "stream": "a stream of batches",
    "tf.data": "a tf.data.Dataset",
}
# Kinds whose samples have numbers, so that every strategy can be given the same ones in the same order.
INDEXED: frozenset[SourceKind] = frozenset({"arrays", "memmap", "dataset"})
LABELS, LABEL = "labels", "label"
# Samples that a model is tried on, and those that tell one data set from another.
TRIAL_SAMPLES, DIGEST_SAMPLES = 8, 256
# What a function that opens a stream may ask for, by the names of its parameters.
STREAM_PARAMETERS = ("rank", "workers", "batch", "epoch", "seed", "loader_workers", "prefetch", "pin_memory")

Batch = tuple[Tree, Tree]
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class IndexedSource:
    """Samples that are read by their numbers."""

    samples: int
    # Numbers of samples ─► the samples one by one, or a whole batch of them.
    fetch: Callable[[Indices], Any]
    gives_batches: bool = False
    # The user's function that makes a batch of samples.
    collate: Collate | None = None

    def read(self, rows: Indices, collate: Collate) -> Batch:
        """Inputs and targets of some samples; `collate` puts samples together where the user has no function for it."""
        fetched = self.fetch(rows)
        return as_batch(fetched if self.gives_batches else (self.collate or collate)(fetched))


@dataclass(frozen=True)
class StreamSource:
    """Batches in an order of their own: what a function returns that is called in each worker for each epoch."""

    open: Callable[..., Iterable[Any]]
    label: str
    # Of STREAM_PARAMETERS those that the function takes.
    takes: frozenset[str] = frozenset()
    # Of all workers together; None where the source does not say.
    samples: int | None = None

    def opened(self, samples: int, **place: Any) -> Iterable[Any]:
        """What the function returns for a worker that trains on so many samples in a step."""
        return self.open(**{name: value for name, value in {"batch": samples, **place}.items() if name in self.takes})

    def full_batches(self, batches: Iterable[Any], samples: int) -> Iterator[Batch]:
        """Batches of exactly so many samples until the stream ends; a last one that is smaller is left out."""
        full = False
        for batch in map(as_batch, batches):
            size = length(batch[0])
            if size == samples:
                full = True
                yield batch
            elif size > samples or not full:
                raise ModelError(
                    f"{self.label} gives a batch of {size} samples, and a worker trains on {samples} in a step; "
                    f"take the parameter batch and give batches of as many"
                )
        if not full:
            raise ModelError(f"{self.label} gives no batch of {samples} samples; use a smaller batch or more data")

    def endless(self, samples: int, epoch: int, reused: Iterable[Any] | None = None, **place: Any) -> Iterator[Batch]:
        """The same, opened anew whenever it ends; `reused` is what it was opened as before, where that starts anew."""
        while True:
            batches = self.opened(samples, epoch=epoch, **place) if reused is None else reused
            yield from self.full_batches(batches, samples)
            epoch += 1

    def starts_anew(self, batches: Iterable[Any]) -> bool:
        """Whether what was opened, such as a DataLoader, can be gone through once more."""
        return "epoch" not in self.takes and not isinstance(batches, Iterator)


@dataclass(frozen=True)
class LoadedData:
    """A data set that is read while training goes on."""

    kind: SourceKind
    train: Any
    test: Any
    classes: int | None = None
    # Samples of an epoch where the run says how many.
    cut: int | None = None
    _trial: list[DataSet] = field(default_factory=list, repr=False, compare=False)
    # Lengths of streams as what opens them tells, train and test; known once the model was tried.
    _lengths: list[int | None] = field(default_factory=list, repr=False, compare=False)

    @property
    def is_indexed(self) -> bool:
        """Whether samples have numbers."""
        return self.kind in INDEXED

    @property
    def train_samples(self) -> int | None:
        """Samples of an epoch; None where nobody says."""
        samples = self._samples(0)
        return samples if self.cut is None or (samples or self.cut) < self.cut else self.cut

    @property
    def test_samples(self) -> int | None:
        """Samples to test on, in proportion; None where nobody says."""
        train, test = self._samples(0), self._samples(1)
        if test is None or self.cut is None or train is None:
            return test
        return test_share(test, train, DataRequest(train_samples=self.cut))

    def _samples(self, part: int) -> int | None:
        samples: int | None = (self.train, self.test)[part].samples
        return self._lengths[part] if samples is None and self._lengths else samples

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample; of several inputs, that of the first."""
        return self.trial.input_shape

    @property
    def evaluation_batch(self) -> int:
        """Samples to look at together, at most; a run takes no more than a worker trains on in a step."""
        return EVALUATION_BATCH

    @property
    def trial(self) -> DataSet:
        """A few samples in memory, to try a model on; read once."""
        if not self._trial:
            self._lengths.clear()
            (inputs, targets), (test_inputs, test_targets) = (self._first(part) for part in (self.train, self.test))
            self._trial.append(DataSet(inputs, targets, test_inputs, test_targets, self.classes))
        return self._trial[0]

    def _first(self, source: Any) -> Batch:
        if isinstance(source, IndexedSource):
            rows = np.arange(min(TRIAL_SAMPLES, source.samples))
            self._lengths.append(source.samples)
            return numbers_of(source.read(rows, stack_samples))
        place = {"rank": 0, "workers": 1, "epoch": 0, "seed": 0}
        loader = {"loader_workers": 0, "prefetch": None, "pin_memory": False}
        opened = source.opened(TRIAL_SAMPLES, **place, **loader)
        self._lengths.append(_length_of(opened, TRIAL_SAMPLES))
        for batch in map(as_batch, opened):
            return numbers_of(take(batch, slice(TRIAL_SAMPLES)))
        raise ModelError(f"{source.label} gives no batch; give at least one")

    def digest(self) -> str | None:
        """What tells this data from other data: some of its samples, evenly spread; None for a stream."""
        if not self.is_indexed:
            return None
        checksum = 0
        for source in (self.train, self.test):
            rows = np.unique(np.linspace(0, source.samples - 1, min(DIGEST_SAMPLES, source.samples)).astype(np.int64))
            checksum = zlib.crc32(str(source.samples).encode(), checksum)
            for row in rows:
                for name, array in named_leaves(numbers_of(source.read(row[None], stack_samples))):
                    checksum = zlib.crc32(f"{name}{array.shape}{array.dtype.str}".encode(), checksum)
                    checksum = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), checksum)
        return f"{checksum:08x}"

    def first(self, train_samples: int | None) -> "LoadedData":
        """The data set with epochs of only so many training samples, and test samples in proportion."""
        return self if train_samples is None else replace(self, cut=train_samples)


def _length_of(opened: Any, batch: int) -> int | None:
    """Samples of what was opened for one worker: those of a loader's data set, or of all its batches; else None."""
    counted: Any
    for counted, each in ((getattr(opened, "dataset", None), 1), (opened, batch)):
        try:
            return len(counted) * each
        except TypeError:
            continue
    return None


def as_batch(value: Any) -> Batch:
    """What a source gave as inputs and targets; the targets of a dict are its `labels`, or the dict itself."""
    if isinstance(value, dict) or _is_mapping(value):
        inputs = _as_tree(value)
        if LABEL in inputs and LABELS not in inputs:
            inputs[LABELS] = inputs.pop(LABEL)
        return inputs, inputs.get(LABELS, inputs)
    if isinstance(value, tuple | list) and len(value) == 2:
        return _as_tree(value[0]), _as_tree(value[1])
    parts = f" of {len(value)} parts" if isinstance(value, tuple | list) else ""
    raise ModelError(
        f"a batch of data() is {type(value).__name__}{parts}; give a pair (inputs, targets), or a dict of inputs with "
        f"its labels inside"
    )


def _is_mapping(value: Any) -> bool:
    """Whether it is a mapping that is no dict, such as the batches of Hugging Face's collators."""
    return hasattr(value, "keys") and hasattr(value, "__getitem__")


def _as_tree(value: Any) -> Tree:
    """Dicts and tuples all the way down; lists of arrays are tuples."""
    if hasattr(value, "dtype"):  # most leaves, in every step
        return value
    if isinstance(value, dict) or _is_mapping(value):
        return {str(name): _as_tree(value[name]) for name in value.keys()}  # noqa: SIM118 - not every mapping iterates
    return tuple(map(_as_tree, value)) if isinstance(value, tuple | list) else value


def numbers_of(batch: Batch) -> Batch:
    """The batch as arrays of NumPy, floats of eight bytes in single precision; what is no number is refused."""
    arrays: Batch = map_tree(_array, batch[0]), map_tree(_array, batch[1])
    for name, array in [*named_leaves(arrays[0]), *named_leaves(arrays[1])]:
        if array.ndim == 0 or array.dtype.kind not in "fiub":
            raise ModelError(
                f"a batch of data() holds {array.dtype} of shape {array.shape}{f' as {name}' if name else ''}; give "
                f"arrays of numbers with a sample in each row, or a function collate(samples) in the file that does"
            )
    counts = {len(leaf) for tree in arrays for leaf in leaves(tree)}
    if len(counts) > 1:
        raise ModelError(
            f"the arrays of a batch of data() have {' and '.join(map(str, sorted(counts)))} samples; give as many of "
            f"each"
        )
    return arrays


def _array(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def stack_samples(samples: list[Any]) -> Any:
    """Samples put together leaf by leaf."""
    trees = [_as_tree(sample) for sample in samples]
    try:
        return map_tree(lambda *parts: np.stack([np.asarray(part) for part in parts]), *trees)
    except ValueError as error:
        raise ModelError(
            f"samples of data() cannot be put together: {error}; give a function collate(samples) in the file that "
            f"makes a batch of them"
        ) from None


def stream_parameters(function: Callable[..., Any], what: str) -> frozenset[str]:
    """Which of STREAM_PARAMETERS a function takes; one that needs something else is refused."""
    parameters = inspect.signature(function).parameters.values()
    names = {parameter.name for parameter in parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names |= set(STREAM_PARAMETERS)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and parameter.name not in STREAM_PARAMETERS
    ]
    if needed:
        raise ModelError(
            f"{what} wants a parameter {needed[0]}, which nobody has; it may take {', '.join(STREAM_PARAMETERS)}"
        )
    return frozenset(names & set(STREAM_PARAMETERS))
