"""Parameters that the first and the last stage of a pipeline share, such as the table of tokens: each has a copy.

Their gradients are added up before the update, so that both copies stay the same; the norm of all gradients counts the
first stage's alone.
"""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.frameworks.torch.found_blocks import HoldsBlocks
from paceline.frameworks.torch.transformer_layers import TiedHeadModule


@dataclass(frozen=True)
class Tied:
    """Shared parameters that the stages of a rank hold, in the same order on both sides."""

    first: list[Tensor] = field(default_factory=list)
    last: list[Tensor] = field(default_factory=list)


def untie(module: nn.Module) -> None:
    """Gives each tied head a copy of its own."""
    for child in module.modules():
        if isinstance(child, TiedHeadModule):
            child.weight = nn.Parameter(child.weight.detach().clone())


def tied_parameters(module: nn.Module) -> Tied:
    """The parameters that both ends of the pipeline share: the embedding and its tied head, or a user model's."""
    children = list(module.modules())
    stages = [child for child in children if isinstance(child, HoldsBlocks)]
    if stages:
        first, last = ([stage.get_parameter(name) for stage in stages if stage.has_copies is copies
                        for name in stage.tied] for copies in (False, True))  # fmt: skip
        return Tied(first, last)
    tables = [child.weight for child in children if isinstance(child, nn.Embedding)]
    return Tied(tables[:1], [child.weight for child in children if isinstance(child, TiedHeadModule)])


def add_up(tied: Tied, group: dist.ProcessGroup, last: int) -> None:
    """Adds the gradients of both copies up, wherever in the pipeline they are: on its first and its `last` place."""
    if tied.first and tied.last:
        for first, copy in zip(tied.first, tied.last, strict=True):
            _local(first).add_(_local(copy))
            _local(copy).copy_(_local(first))
        return
    other_place = last if tied.first else 0
    for parameter in tied.first or tied.last:
        gradient = _local(parameter)
        arriving = torch.empty_like(gradient)
        for request in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, gradient.contiguous(), group=group, group_peer=other_place),
                dist.P2POp(dist.irecv, arriving, group=group, group_peer=other_place),
            ]
        ):
            request.wait()
        gradient.add_(arriving)


def _local(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
