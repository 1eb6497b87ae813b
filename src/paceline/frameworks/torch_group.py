"""Joining and leaving a PyTorch process group over the port that the launcher holds open."""

from datetime import timedelta

import torch.distributed as dist

from paceline.strategies.base import Context


def join_group(context: Context, backend: str | None = None) -> None:
    """Every process of the run in one group: gloo on CPU, NCCL on CUDA, unless the strategy needs another."""
    process, meeting = context.process, context.rendezvous
    patience = timedelta(seconds=context.spec.collective_timeout_seconds)
    store = dist.TCPStore(
        meeting.host,
        meeting.port,
        process.world,
        is_master=process.rank == 0,
        timeout=patience,
        master_listen_fd=meeting.listen_fd if process.rank == 0 else None,
    )
    backend = backend or ("gloo" if context.spec.device == "cpu" else "nccl")
    if context.tape is not None and backend == "gloo":
        from paceline.frameworks.torch_timed import BACKEND, register_timed_backend

        register_timed_backend(context.tape)
        backend = BACKEND
    dist.init_process_group(backend, store=store, rank=process.rank, world_size=process.world, timeout=patience)


def leave_group() -> None:
    """Closes the connections of the group."""
    dist.destroy_process_group()
