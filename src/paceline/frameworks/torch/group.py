"""Joining and leaving a PyTorch process group over the port that the launcher holds open."""

from datetime import timedelta
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from paceline.contract.context import Context
from paceline.frameworks.slices import open_slice_link
from paceline.systems.nccl import LINK_SPEED

# About the gradients of the large CNN; the first transfer also opens connections and does not count.
PROBE_BYTES = 16 << 20
PROBE_ROUNDS = 4
# Groups that this process has left. See `leave_group`.
_left_groups: list[dist.ProcessGroup] = []


def open_store(context: Context, patience: timedelta) -> dist.TCPStore:
    """The store through which the processes find each other, on the port that the first one holds open."""
    process, meeting = context.process, context.rendezvous
    first = process.rank == 0
    open_store = partial(
        dist.TCPStore, meeting.host, meeting.port, process.world, is_master=first, timeout=patience,
        master_listen_fd=meeting.listen_fd if first else None,
    )  # fmt: skip
    try:
        return open_store()
    except NotImplementedError:  # PyTorch 2.6 takes an open port with its older store only
        return open_store(use_libuv=False)


def patience_of(context: Context) -> timedelta:
    """How long a transfer may take."""
    return timedelta(seconds=context.spec.collective_timeout_seconds)


def join_group(context: Context, backend: str | None = None, with_host: bool = False) -> None:
    """Every process of the run in one group: gloo on CPU, NCCL on CUDA, unless the strategy needs another.

    `with_host` adds gloo for tensors in the host's memory.
    """
    process = context.process
    patience = patience_of(context)
    store = open_store(context, patience)
    backend = backend or ("gloo" if context.spec.device == "cpu" else "nccl")
    if backend == "nccl":
        open_slice_link(context)
    if context.recorder is not None and backend == "gloo":
        from paceline.frameworks.torch.instrumentation.collectives import BACKEND, register_timed_backend

        register_timed_backend(context.recorder)
        backend = BACKEND
    over = f"cpu:gloo,cuda:{backend}" if with_host and backend == "nccl" else backend
    dist.init_process_group(over, store=store, rank=process.rank, world_size=process.world, timeout=patience)
    if backend == "nccl" and process.world > 1 and context.recorder is None:
        context.notes[LINK_SPEED] = link_bytes_per_second(process.world)


def leave_group() -> None:
    """Leaves the group of the run; its object stays until the process ends.

    gloo calls back from its own threads, and such a callback may hold the group, as those of PowerSGD do. A thread that
    drops the last reference waits for itself to end, and the whole process is aborted ("Resource deadlock avoided").
    """
    if dist.group.WORLD is not None:
        _left_groups.append(dist.group.WORLD)
    dist.destroy_process_group()


def link_bytes_per_second(ranks: int, payload_bytes: int = PROBE_BYTES) -> float:
    """Bytes per second that each rank sends in an all-reduce over all ranks; the median of a few."""
    payload = torch.ones(payload_bytes // 4, device="cuda")
    round_seconds = []
    for _ in range(PROBE_ROUNDS):
        torch.cuda.synchronize()
        began = perf_counter()
        dist.all_reduce(payload)
        torch.cuda.synchronize()
        round_seconds.append(perf_counter() - began)
    return 2 * (ranks - 1) / ranks * payload_bytes / median(round_seconds[1:])
