"""Batches that a JAX job reads while it trains: each process reads the samples that its own devices take."""

from time import perf_counter_ns

import jax
import numpy as np
from jax import Array

from paceline.contract.job import InputTimes
from paceline.data.order import Indices
from paceline.data.sources import Batch, IndexedSource, LoadedData, numbers_of, stack_samples
from paceline.data.tree import Tree, map_tree
from paceline.frameworks.jax.layout import Layout


class LoadedBatches:
    """Batches of samples with numbers, divided over the devices as the layout divides a batch."""

    def __init__(self, data: LoadedData, layout: Layout) -> None:
        self._data, self._layout = data, layout
        self._rows: Indices = np.empty((0, 0), np.int64)
        self.times = InputTimes()

    def start_epoch(self, rows: Indices) -> None:
        """The samples of each step of the epoch."""
        self._rows = rows

    def batch(self, number: int) -> tuple[Tree, Tree]:
        """Inputs and targets of a step, each sample on the device that takes it."""
        began = perf_counter_ns()
        batch = self._put(self._rows[number])
        self.times.waited += perf_counter_ns() - began
        self.times.batches += 1
        return batch

    def _put(self, rows: Indices) -> tuple[Tree, Tree]:
        sharding, count = self._layout.on(self._layout.batch_side), len(rows)
        places = sharding.addressable_devices_indices_map((count,)).values()
        began = perf_counter_ns()
        stretches = dict.fromkeys(_edges(place[0], count) for place in places)
        parts = {stretch: self._read(self._data.train, rows[slice(*stretch)]) for stretch in stretches}
        self.times.read = (self.times.read or 0) + perf_counter_ns() - began

        def put(*arrays: np.ndarray) -> Array:
            of_place = dict(zip(parts, arrays, strict=True))
            shape = (count, *arrays[0].shape[1:])
            return jax.make_array_from_callback(shape, sharding, lambda index: of_place[_edges(index[0], count)])

        inputs, targets = zip(*parts.values(), strict=True)
        return map_tree(put, *inputs), map_tree(put, *targets)

    def test_batch(self, start: int, stop: int) -> Batch:
        """A stretch of the test samples, in the host's memory."""
        return self._read(self._data.test, np.arange(start, stop))

    def _read(self, source: IndexedSource, rows: Indices) -> Batch:
        inputs, targets = numbers_of(source.read(rows, stack_samples))
        return map_tree(narrow, inputs), map_tree(narrow, targets)


def narrow(array: np.ndarray) -> np.ndarray:
    """Whole numbers of eight bytes in four, as JAX has them."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _edges(stretch: slice, count: int) -> tuple[int, int]:
    start, stop, _ = stretch.indices(count)
    return start, stop
