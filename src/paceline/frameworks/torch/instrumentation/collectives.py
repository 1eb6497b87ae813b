"""A PyTorch backend that records when each collective starts and ends, and when the training thread waits for it.

It hands every call to gloo, whoever makes it: DDP, FSDP, DTensor, pipelines, servers. Only instrumented runs use it.
"""

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.spans import Span, SpanRecorder

BACKEND = "timed"
_COLLECTIVES = {
    "allreduce": "all-reduce", "allreduce_coalesced": "all-reduce", "broadcast": "broadcast", "reduce": "reduce",
    "allgather": "all-gather", "_allgather_base": "all-gather", "allgather_coalesced": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather", "all_gather_single": "all-gather",
    "all_gather_single_coalesced": "all-gather", "gather": "gather", "scatter": "scatter",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter", "reduce_scatter_single": "reduce-scatter",
    "reduce_scatter_single_coalesced": "reduce-scatter", "alltoall": "all-to-all", "alltoall_base": "all-to-all",
    "all_to_all_single": "all-to-all",
    "barrier": "barrier",
}  # fmt: skip


class TimedWork(dist._Work):
    """A transfer under way: its end is recorded when it ends, and each wait for it."""

    def __init__(self, inner: Any, span: Span, recorder: SpanRecorder) -> None:
        super().__init__()
        self._inner, self._span, self._recorder = inner, span, recorder
        self._future: Any = None
        try:
            self._future = inner.get_future()
        except RuntimeError:  # sends and receives have none; their end is seen when they are waited for
            span.exact = False
            return
        self._future.add_done_callback(self._ended)

    def _ended(self, _future: Any = None) -> None:
        self._span.end = self._span.end or perf_counter_ns()

    def wait(self, timeout: Any = None) -> bool:
        """Blocks, and records for how long."""
        began = perf_counter_ns()
        done: bool = self._inner.wait(timeout) if timeout is not None else self._inner.wait()
        ended = perf_counter_ns()
        self._ended()
        self._recorder.add(Span("blocked", self._span.name, began, ended, match=self._span.match))
        return done

    def get_future(self) -> Any:
        """Passes on what the transfer has."""
        return self._future

    def is_completed(self) -> bool:
        """Whether the transfer has ended."""
        return bool(self._inner.is_completed())

    def result(self) -> Any:
        """Passes on what the transfer has."""
        return self._inner.result()

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())


class TimedGroup(dist.ProcessGroup):
    """A process group that records each transfer that it is asked for."""

    def __init__(self, inner: Any, rank: int, size: int, ranks: tuple[int, ...], recorder: SpanRecorder) -> None:
        super().__init__(rank, size)
        self._inner, self._ranks, self._recorder, self._group_rank = inner, ranks, recorder, rank
        self._counts = Counter[str]()

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """The name of the backend."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """The name under which PyTorch registered the group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    def _record(self, name: str, match: str, began: int, payload: Any, work: Any) -> TimedWork:
        number = self._counts[match]
        self._counts[match] += 1
        span = Span(
            "communication", name, began, track="communication", bytes=_bytes(payload), match=f"{match} {number}"
        )
        return TimedWork(work, self._recorder.add(span), self._recorder)

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> TimedWork:
        """Sends to one rank; that rank's receive is the same transfer."""
        began = perf_counter_ns()
        work = self._inner.send(tensors, peer, tag)
        return self._record("send", self._between(self._group_rank, peer, tag), began, tensors, work)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> TimedWork:
        """Receives from one rank; that rank's send is the same transfer."""
        began = perf_counter_ns()
        work = self._inner.recv(tensors, peer, tag)
        return self._record("receive", self._between(peer, self._group_rank, tag), began, tensors, work)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> TimedWork:
        """Receives from whichever rank sends first, so the transfer cannot be matched with its send."""
        began = perf_counter_ns()
        work = self._inner.recv_anysource(tensors, tag)
        return self._record("receive", f"anysource {self._ranks[self._group_rank]} {tag}", began, tensors, work)

    def _between(self, sender: int, receiver: int, tag: int) -> str:
        return f"{self._ranks[sender]}>{self._ranks[receiver]} tag {tag} of {self._ranks}"


def _collective(method: str, name: str) -> Callable[..., Any]:
    def call(self: TimedGroup, *arguments: Any, **named: Any) -> Any:
        began = perf_counter_ns()
        work = getattr(self._inner, method)(*arguments, **named)
        if len(self._ranks) == 1:  # a group of one sends nothing
            return work
        payload = arguments[0] if arguments and method != "barrier" else ()
        return self._record(name, f"{self._ranks}", began, payload, work)

    return call


# Which of them there are depends on the version of PyTorch.
for _method, _name in _COLLECTIVES.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(TimedGroup, _method, _collective(_method, _name))


def _bytes(payload: Any) -> int:
    if isinstance(payload, Tensor):
        return int(payload.numel() * payload.element_size())
    return sum(map(_bytes, payload)) if isinstance(payload, list | tuple) else 0


def register_timed_backend(recorder: SpanRecorder) -> None:
    """Makes the backend known to PyTorch; every group of it records its transfers on this recorder."""

    def make(options: Any, _backend_options: Any = None) -> TimedGroup:
        inner = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
        inner._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        return TimedGroup(inner, options.group_rank, options.group_size, ranks, recorder)

    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu"])
