"""Ring attention: queries stay, keys and values go from rank to rank, and partial results are merged by their norms.

Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", ICLR 2024, as PyTorch has it
(`torch.distributed.tensor.experimental`): what is sent next is under way while attention to what has come is computed.
It is called directly, because PyTorch's `context_parallel` would change attention in all of the process.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as pytorch
from torch.nn import functional

# Of (n, heads, positions, numbers).
POSITIONS = 2
# Kernels of a GPU take heads of a multiple of so many numbers.
HEAD_MULTIPLE = 8
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Kernel:
    """Attention that also gives the logarithm of each query's sum of exponentials, and its backward pass."""

    name: str
    gradient: str = "grad_out"
    forward_options: dict[str, Any] = field(default_factory=dict)
    backward_options: dict[str, Any] = field(default_factory=dict)
    # What the forward pass gives besides, under the names that the backward pass has for it.
    rest: tuple[str, ...] = ()

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Any:
        """Attention; each head of keys and values serves several of queries where there are fewer of them."""
        operation = getattr(torch.ops.aten, self.name).default
        return operation(queries, *_for_all_heads(queries, keys, values), **options)

    def backward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """Gradients of queries, keys and values."""
        operation = getattr(torch.ops.aten, f"{self.name}_backward").default
        keys, values = _for_all_heads(query, key, value)
        of_query, *of_others = operation(query=query, key=keys, value=values, **options)
        return of_query, *(part.unflatten(1, (key.shape[1], -1)).sum(2) for part in of_others[:2])


FLASH = Kernel(
    "_scaled_dot_product_flash_attention",
    rest=("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"),
)
# In single precision, which the other does not know.
EFFICIENT = Kernel(
    "_scaled_dot_product_efficient_attention", "grad_out_", {"attn_bias": None, "compute_log_sumexp": True},
    {"attn_bias": None, "grad_input_mask": [True, True, True, False]}, ("philox_seed", "philox_offset"),
)  # fmt: skip
ON_CPU = Kernel("_scaled_dot_product_flash_attention_for_cpu")


def _for_all_heads(queries: Tensor, *parts: Tensor) -> list[Tensor]:
    return [part.repeat_interleave(queries.shape[1] // part.shape[1], 1) for part in parts]


def kernel_for(queries: Tensor) -> Kernel:
    """The kernel for tensors of that kind."""
    if not queries.is_cuda:
        return ON_CPU
    return FLASH if queries.dtype in _HALVES else EFFICIENT


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend_in_ring(group: dist.ProcessGroup, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of a rank's two pieces of a sequence to all positions up to their own."""
    # Otherwise it gathers all keys and values at once.
    pytorch.set_rotate_method("alltoall")
    width = queries.shape[-1]
    if missing := -width % HEAD_MULTIPLE if queries.is_cuda else 0:
        queries, keys, values = (functional.pad(part, (0, missing)) for part in (queries, keys, values))
    attended: Tensor = _Ring.apply(group, width**-0.5, queries, keys, values)
    return attended[..., :width] if missing else attended


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, group: dist.ProcessGroup, scale: float, *parts: Tensor) -> Tensor:
        queries, keys, values = parts
        kernel = kernel_for(queries)
        attended, sums, *rest = pytorch._templated_ring_attention(
            group, POSITIONS, kernel.forward, queries, keys, values, is_causal=True, dropout_p=0.0, scale=scale,
            **kernel.forward_options,
        )  # fmt: skip
        context.save_for_backward(queries, keys, values, attended, sums)
        context.group, context.kernel, context.scale = group, kernel, scale
        context.rest = dict(zip(kernel.rest, rest, strict=False))
        return attended

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        queries, keys, values, attended, sums = context.saved_tensors
        kernel: Kernel = context.kernel
        of_queries, of_keys, of_values = pytorch._templated_ring_attention_backward(
            context.group, POSITIONS, kernel.backward, gradients[0], kernel.gradient, queries, keys, values, attended,
            sums, True, dropout_p=0.0, scale=context.scale, **kernel.backward_options, **context.rest,
        )  # fmt: skip
        return None, None, of_queries, of_keys, of_values
