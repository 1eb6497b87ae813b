"""What a data set is: arrays in memory, the same numbers for every framework."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.tree import Tree, leaves, length, named_leaves, sample_elements, take

Array = npt.NDArray[Any]
# Most samples, and numbers of all of them (half a gigabyte), that a model is evaluated on at once.
EVALUATION_BATCH, MOST_EVALUATED_NUMBERS = 512, 2**27
# Called with (what is being fetched, bytes so far, bytes in all).
FetchProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DataRequest:
    """What a run needs from a data source."""

    seed: int = 0
    train_samples: int | None = None
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None


@dataclass(frozen=True)
class DataSet:
    """Samples as trees of arrays. Those of named data sets are images channels-first in float32, classes in int64."""

    train_inputs: Tree
    train_targets: Tree
    test_inputs: Tree
    test_targets: Tree
    classes: int | None

    @property
    def train_samples(self) -> int:
        """How many samples there are to train on."""
        return length(self.train_inputs)

    @property
    def test_samples(self) -> int:
        """How many samples there are to test on."""
        return length(self.test_inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample; of several inputs, that of the first."""
        return tuple(leaves(self.train_inputs)[0].shape[1:])

    @property
    def evaluation_batch(self) -> int:
        """Samples to look at together when a model is evaluated: fewer where each has many inputs or outputs."""
        outputs = sample_elements(self.train_targets) * (self.classes or 1)
        return max(1, min(EVALUATION_BATCH, MOST_EVALUATED_NUMBERS // max(outputs, sample_elements(self.train_inputs))))

    def digest(self) -> str:
        """What tells this data from other data, in the order of its samples."""
        checksum = 0
        for tree in (self.train_inputs, self.train_targets, self.test_inputs, self.test_targets):
            for name, array in named_leaves(tree):
                checksum = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), checksum)
                checksum = zlib.crc32(f"{name}{(array.shape, array.dtype.str)}".encode(), checksum)
        return f"{checksum:08x}"

    def first(self, train_samples: int | None) -> "DataSet":
        """The data set with only its first training samples, and test samples in proportion."""
        have = self.train_samples
        if train_samples is None or train_samples >= have:
            return self
        test_samples = test_share(self.test_samples, have, DataRequest(train_samples=train_samples))
        return replace(
            self,
            train_inputs=take(self.train_inputs, slice(train_samples)),
            train_targets=take(self.train_targets, slice(train_samples)),
            test_inputs=take(self.test_inputs, slice(test_samples)),
            test_targets=take(self.test_targets, slice(test_samples)),
        )


@dataclass(frozen=True)
class DataSource:
    """One data set: how many samples it has, how to get it, how to load it."""

    name: str
    about: str
    count: Callable[[DataRequest], int]
    load: Callable[[DataRequest], DataSet]
    # The same of test samples.
    test_count: Callable[[DataRequest], int]
    # Fetches what `load` needs, once, before any run; data that is shipped or generated needs nothing.
    prepare: Callable[[FetchProgress], None] = lambda _progress: None
    # The files on this machine that `load` reads, beside those that ship with Paceline; None where they are not here.
    files: Callable[[], Sequence[Path] | None] = tuple
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    # Whether it has as many samples as anybody asks for.
    generated: bool = False


def scale_pixels(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Bytes (n, height, width) to floats in 0..1 with a channel dimension."""
    return (images.astype(np.float32) / np.float32(255.0))[:, None, :, :]


def test_share(test_samples: int, train_samples: int, request: DataRequest) -> int:
    """Test samples in proportion to the training samples that are asked for."""
    used = min(train_samples, request.train_samples or train_samples)
    return max(1, test_samples * used // train_samples)
