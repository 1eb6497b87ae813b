"""The repeated blocks of a model, each compiled by itself, so that compiling takes the time of one block."""

from collections.abc import Sequence

import torch
from torch import nn

from paceline.contract.context import Context
from paceline.frameworks.torch.found_blocks import blocks
from paceline.frameworks.torch.layers import BLOCK_MODULES
from paceline.frameworks.torch.sharded import layers


def blocks_of(context: Context, module: nn.Module) -> Sequence[nn.Module]:
    """The blocks of a transformer, built in or found in a user's model; the layers of any other model."""
    if context.model.user_model is not None:
        return blocks(module) or layers(module)
    return [child for child in module.modules() if isinstance(child, BLOCK_MODULES)] or layers(module)


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
        block.forward = torch.compile(block.forward)
