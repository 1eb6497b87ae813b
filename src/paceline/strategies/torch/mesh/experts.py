"""Expert parallelism: the experts of a layer are dealt over ranks, and each vector travels to its experts and back.

Lepikhin et al., "GShard", ICLR 2021; without a limit to how many vectors an expert takes, so that none is dropped.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from paceline.frameworks.torch.transformer_layers import Experts

Network = Callable[[Tensor, Tensor], Tensor]


def deal_experts(module: nn.Module, group: dist.ProcessGroup | None) -> list[Experts]:
    """Keeps this rank's share of each layer's experts, in place, and returns the layers' expert modules."""
    dealt = [child for child in module.modules() if isinstance(child, Experts)]
    if group is None or group.size() == 1:
        return dealt
    for experts in dealt:
        for name, parameter in list(experts.named_parameters()):
            share = parameter.detach().chunk(group.size())[group.rank()].clone()
            setattr(experts, name, nn.Parameter(share))
        # Only the call changes, so that no parameter changes its name.
        experts.forward = partial(_through_ranks, experts.forward, group)  # type: ignore[method-assign]
    return dealt


def _through_ranks(network: Network, group: dist.ProcessGroup, vectors: Tensor, counts: Tensor) -> Tensor:
    """The outputs of all experts for this rank's tokens, which are sorted by expert."""
    ranks = group.size()
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    # By rank that a vector comes from, then by expert.
    by_rank = arriving.view(ranks, -1)
    sent, received = (sizes.view(ranks, -1).sum(1).tolist() for sizes in (counts, arriving))
    gathered = all_to_all_single_autograd(vectors, received, sent, group)
    local = torch.arange(by_rank.shape[1], device=counts.device).repeat(ranks)
    order = local.repeat_interleave(arriving).argsort(stable=True)
    outputs = network(gathered[order], by_rank.sum(0))
    returned = torch.empty_like(outputs).index_copy(0, order, outputs)
    return all_to_all_single_autograd(returned, sent, received, group)


def whole_experts(parameter: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The experts of all ranks, as in the whole model."""
    if group is None or group.size() == 1:
        return parameter
    parts = [torch.empty_like(parameter) for _ in range(group.size())]
    dist.all_gather(parts, parameter.contiguous(), group=group)
    return torch.cat(parts)
