"""Batches that a process reads into the host's memory while it trains, for frameworks that are handed each of them."""

from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from paceline.contract.job import InputTimes
from paceline.data.order import Indices
from paceline.data.sources import Batch, IndexedSource, LoadedData, as_batch, numbers_of, stack_samples
from paceline.spec import RunSpec


class HostBatches:
    """One share of data that are read while a job trains, as arrays of NumPy."""

    def __init__(self, data: LoadedData, spec: RunSpec, share: tuple[int, int], times: InputTimes) -> None:
        replica, replicas = share
        self._data, self._times = data, times
        self._samples = spec.samples_per_step // replicas
        self._place: dict[str, Any] = {"rank": replica, "workers": replicas, "seed": spec.seed}
        # Nobody reads ahead for these frameworks.
        self._place |= {"loader_workers": 0, "prefetch": None, "pin_memory": False}
        self._rows: Indices = np.empty((0, 0), np.int64)
        self._stream: Iterator[Batch] = iter(())

    @property
    def is_stream(self) -> bool:
        """Whether batches come in an order of their own."""
        return not isinstance(self._data.train, IndexedSource)

    def start_epoch(self, epoch: int, rows: Indices | None) -> None:
        """Begins with the batches of that epoch; `rows` has the samples of each step, where they have numbers."""
        if rows is not None:
            self._rows = rows
        else:
            self._stream = self._data.train.endless(self._samples, epoch, **self._place)

    def read(self, number: int) -> Batch:
        """Inputs and targets of a step; a stream gives its next ones."""
        began = perf_counter_ns()
        batch = next(self._stream) if self.is_stream else self._data.train.read(self._rows[number], stack_samples)
        batch = numbers_of(batch)
        self._times.read = (self._times.read or 0) + perf_counter_ns() - began
        return batch

    def read_test(self, stretches: Sequence[slice]) -> Iterator[Batch]:
        """These stretches of the test samples."""
        for stretch in stretches:
            yield numbers_of(self._data.test.read(np.arange(stretch.start, stretch.stop), stack_samples))

    def test_stream(self) -> Iterator[Batch]:
        """The share of a stream of test samples."""
        opened = self._data.test.opened(self._samples, epoch=0, **self._place)
        yield from map(numbers_of, map(as_batch, opened))
