"""Activations that are computed again in the backward pass instead of kept: those of a whole block, or the cheap ones.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; selective: Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", MLSys 2023.
"""

from collections.abc import Iterable
from functools import cache, partial
from logging import ERROR, getLogger
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from paceline.contract.context import Context
from paceline.frameworks.torch.found_blocks import blocks
from paceline.frameworks.torch.layers import BLOCK_MODULES
from paceline.frameworks.torch.sharded import layers

# What selective recomputation keeps: results of products, of attention and of transfers between ranks.
_KEPT = {
    "aten": ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu",
             "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
             "_scaled_dot_product_cudnn_attention"),
    "_c10d_functional": (
        "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single", "wait_tensor",
    ),
}  # fmt: skip


def recompute(context: Context, module: nn.Module) -> None:
    """Has the blocks of a model, or the layers of a user's without blocks, compute activations again as the run says.

    The module's `forward` is replaced rather than the module wrapped, so that no parameter changes its name.
    """
    kind = context.spec.recompute
    if kind == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        options["context_fn"] = _selective_contexts
        if "compiled" in context.spec.execution:
            options["context_fn"] = compiled_contexts
            # It warns of blocks that change things in place, which is for whoever wrote them to know.
            getLogger("torch._higher_order_ops.wrap").setLevel(ERROR)
    for block in _recomputed(context, module):
        block.forward = partial(checkpoint, block.forward, **options)


def _recomputed(context: Context, module: nn.Module) -> Iterable[nn.Module]:
    if context.model.user_model is not None:
        return blocks(module) or layers(module)
    return [child for child in module.modules() if isinstance(child, BLOCK_MODULES)]


class _KeptAlone(TorchDispatchMode):
    """Leaves operations whose results are kept to PyTorch, and makes all others as if nothing were kept.

    PyTorch wants each operation of the first pass in the second one too. FSDP does more in one of them than in the
    other where it gathers a part of a block by itself, such as experts.
    """

    def __init__(self, keeping: TorchDispatchMode) -> None:
        super().__init__()
        self._keeping = keeping

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if operation in _kept_operations():
            return self._keeping.__torch_dispatch__(operation, types, arguments, named)
        return operation(*arguments, **(named or {}))


def _selective_contexts() -> tuple[_KeptAlone, _KeptAlone]:
    first, second = create_selective_checkpoint_contexts(_keep)
    return _KeptAlone(first), _KeptAlone(second)


def _keep(*_operation: Any, **_named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE


def compiled_contexts() -> Any:
    """The same for blocks that are compiled with it: there PyTorch marks each operation once."""
    return create_selective_checkpoint_contexts(_keep_some)


def _keep_some(_context: Any, operation: Any, *_arguments: Any, **_named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _kept_operations() else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _kept_operations() -> set[Any]:
    return {
        getattr(getattr(torch.ops, space), name).default
        for space, names in _KEPT.items()
        for name in names
        if hasattr(getattr(torch.ops, space), name)
    }
