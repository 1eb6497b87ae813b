"""Data that are read while a PyTorch job trains, behind the same calls as `ResidentData`.

Samples with numbers are read in the order that every strategy has, by this process or by PyTorch's loader processes;
a stream gives its batches in its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from paceline.contract.context import Context
from paceline.contract.job import InputTimes
from paceline.data.order import Indices
from paceline.data.sources import Batch, IndexedSource, LoadedData, StreamSource, as_batch
from paceline.data.tree import Tree, map_tree
from paceline.frameworks.torch.resident_data import IMAGE_DIMENSIONS
from paceline.spec import RunSpec

# Whether all processes of the run have another batch; the others would wait for one that has none.
Agree = Callable[[bool], bool]


class LoadedBatches:
    """One worker's share of data that are read while it trains."""

    # What `batch` is given; there is only one thing to train on.
    train = None

    def __init__(self, context: Context, data: LoadedData, device: torch.device, share: tuple[int, int]) -> None:
        spec = context.spec
        self._spec, self._data, self._device, self._on_cpu = spec, data, device, device.type == "cpu"
        self._channels_last = spec.memory_format == "channels_last"
        self._replica, self._replicas = share
        self._local_batch = spec.samples_per_step // self._replicas
        self.evaluation_batch = min(data.evaluation_batch, self._local_batch)
        self.times = InputTimes()
        indexed = isinstance(data.train, IndexedSource)
        self._train: _Rows | _Stream = (
            _Rows(data.train, spec, self.times) if indexed else _Stream(data.train, spec, self._place, self.times)
        )

    @property
    def _place(self) -> dict[str, int]:
        return {"rank": self._replica, "workers": self._replicas}

    @property
    def is_stream(self) -> bool:
        """Whether batches come in an order of their own."""
        return isinstance(self._data.train, StreamSource)

    @property
    def test_samples(self) -> int | None:
        """How many samples there are to test on; None where nobody says."""
        return self._data.test_samples

    def start_epoch(self, epoch: int, rows: Indices | None) -> None:
        """Begins with the batches of that epoch; `rows` has the samples of each step, where they have numbers."""
        self._train.start(epoch, rows, self._local_batch)

    def batch(self, _train: object, index: Tensor) -> Batch:
        """Inputs and targets of some training samples, on the device; a stream gives its next, whatever the index."""
        began = perf_counter_ns()
        batch = self._move(*self._train.next(index))
        self.times.waited += perf_counter_ns() - began
        self.times.batches += 1
        return batch

    def _move(self, inputs: Tree, targets: Tree) -> Batch:
        """As tensors on the device, in single precision and with the channels of images where the run wants them."""
        moved = map_tree(self._put_input, inputs)
        return moved, (moved if targets is inputs else map_tree(self._put, targets))

    def _put(self, leaf: Any) -> Tensor:
        tensor = _tensor(leaf)
        if not self._on_cpu:
            tensor = tensor.to(self._device, non_blocking=self._spec.pin_memory)
        return tensor.float() if tensor.dtype is torch.float64 else tensor

    def _put_input(self, leaf: Any) -> Tensor:
        tensor = self._put(leaf)
        if self._channels_last and tensor.ndim == IMAGE_DIMENSIONS:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def read_test(self, stretches: Sequence[slice]) -> Iterator[Batch]:
        """These stretches of the test set."""
        rows = [np.arange(stretch.start, stretch.stop) for stretch in stretches]
        reading = _Reading(self._data.test)
        batches: Iterable[Any] = (reading[index] for index in rows)
        if self._spec.loader_workers:
            batches = DataLoader(reading, batch_size=None, sampler=rows, num_workers=self._spec.loader_workers,
                                 collate_fn=_unchanged)  # fmt: skip
        for inputs, targets, _ in batches:
            yield self._move(inputs, targets)

    def test_stream(self, part: int, parts: int, agree: Agree) -> Iterator[Batch]:
        """One of `parts` shares of a stream of test samples, in as many batches as the shortest share has."""
        source, spec = self._data.test, self._spec
        place = {"rank": part, "workers": parts, "epoch": 0, "seed": spec.seed, **_loader_fields(spec)}
        opened = source.opened(self._local_batch, **place)
        stretch = None if source.samples is None else self._data.test_samples
        batches: Iterator[Batch] = map(as_batch, opened)
        if stretch is not None:
            batches = islice(batches, max(1, -(-stretch // parts // self._local_batch)))
        while agree((batch := next(batches, None)) is not None):
            assert batch is not None
            yield self._move(*batch)

    def close(self) -> None:
        """Ends the loader's processes."""
        self._train.close()


class _Rows:
    """Batches by the numbers of their samples, read ahead in their order where there are processes for it."""

    def __init__(self, source: IndexedSource, spec: RunSpec, times: InputTimes) -> None:
        self._reading, self._times, self._pinned = _Reading(source), times, spec.pin_memory
        self._rows: Indices = np.empty((0, 0), np.int64)
        self._coming, self._sampler = 0, _Coming()
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] | None = None
        times.processes = spec.loader_workers
        if spec.loader_workers:
            self._loader = DataLoader(
                self._reading, batch_size=None, sampler=self._sampler, num_workers=spec.loader_workers,
                prefetch_factor=spec.prefetch, pin_memory=spec.pin_memory, persistent_workers=True,
                collate_fn=_unchanged,
            )  # fmt: skip

    def start(self, _epoch: int, rows: Indices | None, _samples: int) -> None:
        assert rows is not None
        self._rows = rows
        self._start_at(0)

    def _start_at(self, number: int) -> None:
        """Reads ahead from that step of the epoch on."""
        self._coming = number
        if self._loader is not None:
            self._sampler.rows = list(self._rows[number:])
            self._batches = iter(self._loader)

    def next(self, index: Tensor) -> Batch:
        rows = index.cpu().numpy()
        number = self._step_of(rows) if self._batches is not None else None
        if number is None:
            inputs, targets, nanoseconds = self._reading[rows]
            if self._pinned:
                inputs, targets = map_tree(Tensor.pin_memory, inputs), map_tree(Tensor.pin_memory, targets)
        else:
            if number != self._coming:
                # A run that goes on in the middle of an epoch.
                self._start_at(number)
            self._coming += 1
            assert self._batches is not None
            inputs, targets, nanoseconds = next(self._batches)
        self._times.read = (self._times.read or 0) + nanoseconds
        return inputs, targets

    def _step_of(self, rows: Indices) -> int | None:
        """The step of the epoch that has these samples, mostly the one that comes next; None where none has."""
        if self._coming < len(self._rows) and np.array_equal(self._rows[self._coming], rows):
            return self._coming
        return next((step for step, others in enumerate(self._rows) if np.array_equal(others, rows)), None)

    def close(self) -> None:
        # The iterator of a loader ends its processes when it goes.
        self._batches = None
        if self._loader is not None:
            self._loader._iterator = None
        self._loader = None


class _Stream:
    """Batches as a stream gives them."""

    def __init__(self, source: StreamSource, spec: RunSpec, place: dict[str, int], times: InputTimes) -> None:
        self._source, self._times, self._pinned = source, times, spec.pin_memory
        self._place = {**place, "seed": spec.seed, **_loader_fields(spec)}
        self._reused: Iterable[Any] | None = None
        self._batches: Iterator[Batch] = iter(())

    def start(self, epoch: int, _rows: Indices | None, samples: int) -> None:
        reused = self._reused
        if reused is None:
            opened = self._source.opened(samples, epoch=epoch, **self._place)
            self._times.processes = int(getattr(opened, "num_workers", 0))
            reused = opened if self._source.starts_anew(opened) else None
            first = iter(self._source.full_batches(opened, samples)) if reused is None else iter(())
            self._reused = reused
            later = self._source.endless(samples, epoch + (reused is None), reused, **self._place)
            self._batches = _one_after_another(first, later)
        else:
            self._batches = self._source.endless(samples, epoch, reused, **self._place)

    def next(self, _index: Tensor) -> Batch:
        if self._times.processes:
            return next(self._batches)
        began = perf_counter_ns()
        batch = next(self._batches)
        if self._pinned:
            inputs, targets = tensors_of(batch)
            batch = map_tree(Tensor.pin_memory, inputs), map_tree(Tensor.pin_memory, targets)
        self._times.read = (self._times.read or 0) + perf_counter_ns() - began
        return batch

    def close(self) -> None:
        self._batches, self._reused = iter(()), None


class _Reading(Dataset[Any]):
    """Whole batches by the numbers of their samples, and the nanoseconds that reading one took."""

    def __init__(self, source: IndexedSource) -> None:
        self._source = source

    def __getitem__(self, rows: Indices) -> tuple[Tree, Tree, int]:
        began = perf_counter_ns()
        inputs, targets = tensors_of(self._source.read(rows, default_collate))
        return inputs, targets, perf_counter_ns() - began


class _Coming(Sampler[Any]):
    """The samples of the steps that are still to come in this epoch."""

    rows: list[Indices] = []

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _unchanged(batch: Any) -> Any:
    return batch


def _one_after_another(first: Iterator[Batch], later: Iterator[Batch]) -> Iterator[Batch]:
    yield from first
    yield from later


def _loader_fields(spec: RunSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ("loader_workers", "prefetch", "pin_memory")}


def tensors_of(batch: Batch) -> Batch:
    """The batch as tensors of their own types."""
    inputs, targets = batch
    if targets is inputs:
        inputs = map_tree(_tensor, inputs)
        return inputs, inputs
    return map_tree(_tensor, inputs), map_tree(_tensor, targets)


def _tensor(leaf: Any) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.ascontiguousarray(leaf))
