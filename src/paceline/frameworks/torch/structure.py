"""The structure of a user's PyTorch model in words: what its identity covers beside its files."""

import re

from torch import nn

# Objects without a name of their own are shown with their place in memory, which is not the same twice.
_PLACE = re.compile(r" at 0x[0-9a-f]+")


def describe(model: nn.Module) -> list[str]:
    """Its modules with their settings, and the names, shapes and types of its parameters and buffers."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [_PLACE.sub("", repr(model)), *(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors)]
