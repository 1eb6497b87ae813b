"""The parts of a model that repeat, each compiled by itself: a model is then compiled in the time of one block."""

from collections.abc import Sequence

import torch
from torch import nn

from paceline.contract.context import Context
from paceline.frameworks.torch.found_blocks import blocks
from paceline.frameworks.torch.layers import BLOCK_MODULES
from paceline.frameworks.torch.sharded import layers


def blocks_of(context: Context, module: nn.Module) -> Sequence[nn.Module]:
    """The blocks of a transformer, built in with its head or found in a user's model; the layers of any other model.

    A head over a vocabulary of an odd size is a slow product that the compiler pads: with GPT-2's 50,257 tokens on an
    H200 it takes 30 of 75 ms of a step, and a third of that where it is compiled.
    """
    if context.model.own is not None:
        return blocks(module) or layers(module)
    found = [child for child in module.modules() if isinstance(child, BLOCK_MODULES)]
    sequences = [child for child in module.modules() if isinstance(child, nn.Sequential)]
    heads = [child for sequence in sequences for child in sequence.children() if isinstance(child, nn.Linear)]
    return [*found, *heads] if found else layers(module)


def compile_blocks(context: Context, module: nn.Module, twice_back: bool = False) -> None:
    """Compiles each block where the run says so; `twice_back` is whether a pass goes back through it in two parts.

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
