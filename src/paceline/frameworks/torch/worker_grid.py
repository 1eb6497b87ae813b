"""Workers in rows: those of a row share one model, and the same position in every row holds the same part of it.

The rows are replicas. Gradients are averaged between them by hand: PyTorch's DistributedDataParallel does not take
modules whose parameters are cut by `DTensor`, and fails under GPipe.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.contract.context import Context
from paceline.costs.cuts import BUCKET_BYTES

# Dimensions of the mesh: between rows, and within a row.
DATA, MODEL = "data", "model"


@dataclass(frozen=True)
class WorkerGrid:
    """Where a process is among the workers: its row, its position in the row, and the groups of its row and column."""

    row: int
    rows: int
    position: int
    row_ranks: tuple[int, ...]
    row_group: dist.ProcessGroup
    column_group: dist.ProcessGroup

    def mesh(self, device: torch.device) -> DeviceMesh:
        """The same as PyTorch's sharded tensors know it: dimensions `data` and `model`."""
        ranks = torch.arange(self.rows * len(self.row_ranks)).view(self.rows, -1)
        return DeviceMesh.from_group(
            [self.column_group, self.row_group], device.type, mesh=ranks, mesh_dim_names=(DATA, MODEL)
        )


def arrange_workers(context: Context, row_length: int) -> WorkerGrid:
    """Rows of `row_length` neighbouring ranks; every process makes every group, in the same order."""
    workers, rank = context.spec.workers, context.process.rank
    patience = timedelta(seconds=context.spec.collective_timeout_seconds)
    rows = [tuple(range(start, start + row_length)) for start in range(0, workers, row_length)]
    columns = [tuple(range(position, workers, row_length)) for position in range(row_length)]
    groups = {ranks: dist.new_group(ranks, timeout=patience) for ranks in dict.fromkeys((*rows, *columns))}
    row, position = divmod(rank, row_length)
    return WorkerGrid(row, len(rows), position, rows[row], groups[rows[row]], groups[columns[position]])


@dataclass
class _Bucket:
    """Parameters whose gradients travel together."""

    parameters: list[nn.Parameter]
    waiting: int = 0
    buffer: Tensor | None = None
    work: dist.Work | None = None


@dataclass
class GradientAverage:
    """Averages gradients over a group in buckets, each sent as soon as the backward pass has filled it."""

    group: dist.ProcessGroup
    # Backward passes that add to the gradients before they are complete.
    passes: int = 1
    # The type in which they are added up; their own where none is given.
    kind: torch.dtype | None = None
    _buckets: list[_Bucket] = field(default_factory=list)
    _started: int = 0

    def add_parameters(self, parameters: Iterable[nn.Parameter]) -> None:
        """Also averages the gradients of these parameters: the last ones first, as a backward pass fills them."""
        size = 0
        for parameter in reversed([each for each in parameters if each.requires_grad]):
            if not self._buckets or size >= BUCKET_BYTES:
                self._buckets.append(_Bucket([]))
                size = 0
            bucket = self._buckets[-1]
            bucket.parameters.append(parameter)
            size += parameter.numel() * parameter.element_size()
            parameter.register_post_accumulate_grad_hook(lambda _filled, bucket=bucket: self._count(bucket))
        self._reset()

    def finish(self) -> None:
        """Waits for all buckets and puts the averages in the place of the gradients."""
        while self._started < len(self._buckets):
            self._start(self._buckets[self._started])
        for bucket in self._buckets:
            assert bucket.work is not None and bucket.buffer is not None
            bucket.work.wait()
            for parameter, average in zip(bucket.parameters, self._split_buffer(bucket), strict=True):
                if parameter.grad is not None:
                    local_part(parameter.grad).copy_(average.view_as(local_part(parameter.grad)))
        self._reset()

    def _reset(self) -> None:
        self._started = 0
        for bucket in self._buckets:
            bucket.waiting, bucket.buffer, bucket.work = len(bucket.parameters) * self.passes, None, None

    def _count(self, bucket: _Bucket) -> None:
        bucket.waiting -= 1
        # In the same order on every rank, whatever order the gradients came in.
        while self._started < len(self._buckets) and self._buckets[self._started].waiting == 0:
            self._start(self._buckets[self._started])

    def _start(self, bucket: _Bucket) -> None:
        gradients = [
            local_part(parameter.grad).reshape(-1)
            if parameter.grad is not None
            else local_part(parameter).new_zeros(local_part(parameter).numel())
            for parameter in bucket.parameters
        ]
        with torch.no_grad():
            bucket.buffer = torch.cat(gradients).to(self.kind or gradients[0].dtype).div_(self.group.size())
        bucket.work = dist.all_reduce(bucket.buffer, group=self.group, async_op=True)
        self._started += 1

    def _split_buffer(self, bucket: _Bucket) -> Iterable[Tensor]:
        assert bucket.buffer is not None
        parts: tuple[Tensor, ...] = bucket.buffer.split(
            [local_part(parameter).numel() for parameter in bucket.parameters]
        )
        return parts


def average_over_rows(
    grid: WorkerGrid, parameters: Iterable[nn.Parameter], passes: int = 1, kind: torch.dtype | None = None
) -> GradientAverage | None:
    """Averages these gradients between the rows, if there are several."""
    if grid.rows == 1:
        return None
    average = GradientAverage(grid.column_group, passes, kind)
    average.add_parameters(parameters)
    return average


def local_part(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
