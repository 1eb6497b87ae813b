"""Context parallelism: each rank has a part of every sequence, and gathers keys and values or has them sent round.

Gathered as in Llama 3 (Dubey et al., 2024, section 3.3.2): a rank's queries see its own keys and those before them.
In a ring (`ring.py`) a rank has two pieces of the sequence, one as far from its start as the other from its end, so
that all have as much to compute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from paceline.frameworks.torch.layers import BLOCK_MODULES, EmbedModule

SEQUENCE = 1
# Of keys or values: (n, heads, positions, numbers); stacked they have one dimension more.
STACKED_POSITIONS = 3


@dataclass(frozen=True)
class Stretch:
    """A rank's part of each sequence: the `index`th of `count` that are equally long, or two pieces half as long."""

    index: int
    count: int
    group: dist.ProcessGroup | None = None
    # Whether keys and values go round in a ring.
    in_ring: bool = False

    @property
    def pieces(self) -> tuple[int, ...]:
        """Which pieces of a sequence, of as many as all ranks have together."""
        return (self.index, 2 * self.count - 1 - self.index) if self.in_ring else (self.index,)

    def first_positions(self, length: int) -> tuple[int, ...]:
        """Where its pieces of a sequence of that length begin."""
        piece = length // (self.count * len(self.pieces))
        return tuple(number * piece for number in self.pieces)

    def of(self, sequences: Tensor) -> Tensor:
        """The rank's part of sequences of shape (n, length, ...)."""
        if self.count == 1:
            return sequences
        pieces = sequences.chunk(self.count * len(self.pieces), SEQUENCE)
        return torch.cat([pieces[number] for number in self.pieces], SEQUENCE)

    def whole(self, outputs: Tensor) -> Tensor:
        """The parts of all ranks put together, for evaluation."""
        if self.count == 1:
            return outputs
        parts = [torch.empty_like(outputs) for _ in range(self.count)]
        dist.all_gather(parts, outputs.contiguous(), group=self.group)
        if self.in_ring:
            halves = [part.chunk(2, SEQUENCE) for part in parts]
            parts = [early for early, _ in halves] + [late for _, late in reversed(halves)]
        return torch.cat(parts, SEQUENCE)


def divide_sequences(module: nn.Module, stretch: Stretch, length: int) -> None:
    """Has the module's layers work on a stretch of sequences of that length, in place."""
    if stretch.count == 1:
        return
    attend: Callable[..., Tensor] = partial(_attend, stretch)
    if stretch.in_ring:
        # What it uses of PyTorch is experimental.
        from paceline.strategies.torch.mesh.ring import attend_in_ring

        attend = partial(attend_in_ring, stretch.group)
    for child in module.modules():
        if isinstance(child, (*BLOCK_MODULES, EmbedModule)):
            child.first_positions = stretch.first_positions(length)
        if isinstance(child, BLOCK_MODULES):
            child.attend = attend  # type: ignore[method-assign]


def _attend(stretch: Stretch, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of a stretch's queries to all positions up to their own."""
    gathered = all_gather_tensor_autograd(torch.stack((keys, values)), STACKED_POSITIONS, stretch.group)
    length, shared = queries.shape[-2], queries.shape[1] != keys.shape[1]
    positions = (stretch.index + 1) * length
    keys, values = gathered[..., :positions, :].unbind()
    # Kernels of a GPU know the mask by its name; elsewhere it is written out.
    mask = causal_lower_right(length, positions) if queries.is_cuda else _mask(length, positions, queries.device)
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=shared)


def _mask(length: int, positions: int, device: torch.device) -> Tensor:
    return torch.ones(length, positions, dtype=torch.bool, device=device).tril(positions - length)
