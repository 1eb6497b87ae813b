"""A training step as one CUDA graph: recorded once, then replayed without the host launching its kernels one by one.

A replay takes no input: the step's number, kept on the GPU, chooses the samples, and the loss is written beside the
others. What the steps changed that settle memory before the recording is put back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.frameworks.torch.training import TorchJob

# DistributedDataParallel regroups its buckets in early steps; PyTorch's notes on CUDA graphs ask for eleven before.
SETTLING_STEPS = 11


@contextmanager
def recording_stream(wanted: bool) -> Iterator[None]:
    """A stream other than the default one, on which a model to be recorded must be wrapped and warmed up."""
    if not wanted:
        yield
        return
    stream, usual = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(usual)
    with torch.cuda.stream(stream):
        yield
    usual.wait_stream(stream)


class GraphedJob:
    """A job whose steps replay a CUDA graph; everything else is the wrapped job's."""

    stride = 1

    def __init__(self, job: TorchJob) -> None:
        self._job = job
        job.start_epoch(0)
        self._order = job.order.clone()
        self._number = torch.zeros(1, dtype=torch.long, device=self._order.device)
        self._losses = torch.zeros(len(self._order), device=self._order.device)
        self._steps_run = 0
        with job.unchanged():
            with recording_stream(True):
                for _ in range(SETTLING_STEPS):
                    self._one_step()
            self._graph = torch.cuda.CUDAGraph()
            # The threads of NCCL may ask the GPU for things of their own meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._one_step()
            torch.cuda.synchronize()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def _one_step(self) -> None:
        rows = self._order.index_select(0, self._number)[0]
        loss = self._job.train_on(rows)
        self._losses.index_copy_(0, self._number, loss.reshape(1).float())
        # The settling steps may be more than an epoch has.
        self._number.add_(1).remainder_(len(self._order))

    def start_epoch(self, epoch: int) -> None:
        """The epoch's indices go where the graph reads them."""
        self._job.start_epoch(epoch)
        self._order.copy_(self._job.order)
        self._number.zero_()
        self._steps_run = 0

    def step(self, first: int, count: int) -> None:
        """One replay for each step."""
        for _ in range(count):
            self._graph.replay()
        self._steps_run += count

    def losses(self) -> list[float]:
        """Losses of this process's share of each batch."""
        losses: list[float] = self._losses[: self._steps_run].tolist()
        return losses

    def close(self) -> None:
        """Releases the graph before what it uses."""
        torch.cuda.synchronize()
        self._graph.reset()
        del self._graph
        self._job.close()
