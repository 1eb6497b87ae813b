"""A head that shares the table of tokens, where a pipeline has them on different stages: each has a copy.

Their gradients are added up before the update, so that both copies stay the same; the norm of all gradients counts the
first stage's alone.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.frameworks.torch.transformer_layers import TiedHeadModule


def untie(module: nn.Module) -> None:
    """Gives each tied head a copy of its own."""
    for child in module.modules():
        if isinstance(child, TiedHeadModule):
            child.weight = nn.Parameter(child.weight.detach().clone())


def tables(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """The table of tokens and the copy of a tied head, as far as they are among these stages."""
    table = next((child.weight for child in module.modules() if isinstance(child, nn.Embedding)), None)
    head = next((child.weight for child in module.modules() if isinstance(child, TiedHeadModule)), None)
    return table, head


def add_up(table: Tensor | None, head: Tensor | None, group: dist.ProcessGroup, last: int) -> None:
    """Adds the gradients of both copies up, wherever in the pipeline they are: on its first and its `last` place."""
    if table is not None and head is not None:
        total = _local(table) + _local(head)
        _local(table).copy_(total)
        _local(head).copy_(total)
        return
    own = table if table is not None else head
    if own is None:
        return
    other = last if table is not None else 0
    gradient = _local(own)
    arriving = torch.empty_like(gradient)
    for request in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, gradient.contiguous(), group=group, group_peer=other),
            dist.P2POp(dist.irecv, arriving, group=group, group_peer=other),
        ]
    ):
        request.wait()
    gradient.add_(arriving)


def _local(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
