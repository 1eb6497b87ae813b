"""Gradient compression for `DistributedDataParallel`, and gradients that are sent less often."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.frameworks.torch.training import TorchJob

CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def compress_gradients(wrapped: DistributedDataParallel, kind: str, rank: int, full_steps: int) -> None:
    """Registers a hook: another precision, or PowerSGD of that rank after some full steps."""
    if kind in CASTS:
        wrapped.register_comm_hook(CASTS[kind], send_cast)
    else:
        state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=full_steps)
        wrapped.register_comm_hook(state, powerSGD_hook)


def send_cast(kind: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Averages a bucket in another precision. PyTorch has hooks like it, but refuses bfloat16 on CPU."""
    gradients = bucket.buffer()
    cast = gradients.to(kind).div_(dist.get_world_size())
    future = dist.all_reduce(cast, async_op=True).get_future()
    return future.then(lambda done: gradients.copy_(done.value()[0]))


def make_contiguous(module: nn.Module) -> None:
    """Gives parameters their default memory format, for code that cannot read others."""
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()


class DataParallelJob(TorchJob):
    """Training with DDP; of several passes per step only the last sends gradients."""

    def _sending(self, last: bool) -> AbstractContextManager[Any]:
        waits: AbstractContextManager[Any] = nullcontext() if last else self._module.no_sync()
        return waits
