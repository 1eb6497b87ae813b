"""The repeated blocks of a model, each compiled by itself, so that compiling takes the time of one block."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_map_only

from paceline.contract.context import Context
from paceline.frameworks.torch.found_blocks import blocks
from paceline.frameworks.torch.layers import BLOCK_MODULES
from paceline.frameworks.torch.sharded import layers
from paceline.workloads.layers import JointBlock
from paceline.workloads.transformer_layers import LlamaBlock


def blocks_of(context: Context, module: nn.Module) -> Sequence[nn.Module]:
    """The blocks of a transformer, built in or found in a user's model; the layers of any other model.

    A stage of a pipeline may have none of the blocks.
    """
    if context.model.user_model is not None:
        return blocks(module) or layers(module)
    if not any(isinstance(layer, (JointBlock, LlamaBlock)) for layer in context.model.layers):
        return layers(module)
    return [child for child in module.modules() if isinstance(child, BLOCK_MODULES)]


def compile_blocks(context: Context, module: nn.Module, twice_back: bool = False) -> None:
    """Compiles each block where the run says so; `twice_back`: the backward pass goes through it in two parts.

    The block's `forward` is replaced, so that no parameter changes its name and hooks around it stay as they are.
    """
    if "compiled" not in context.spec.execution:
        return
    if twice_back:
        from torch._functorch import config

        # What the forward pass left must stay for the second part.
        config.donated_buffer = False
    for block in blocks_of(context, module):
        block.forward = partial(_on_arrived, torch.compile(block.forward))


def _on_arrived(compiled: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Calls a compiled block with inputs that have arrived: of one still under way, its gradient would be lost.

    That is pytorch#191113. A copy waits, and passes the gradient on.
    """
    inputs, named = tree_map_only(AsyncCollectiveTensor, lambda item: item.clone(), (inputs, named))
    return compiled(*inputs, **named)
