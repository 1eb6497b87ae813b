"""Numbers that stand for those which tensors of the meta device do not have, where a program reads them."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Counts by the number of their tensor, and what they add up to.
_counted: dict[int, tuple[Tensor, int]] = {}
# For operations that have no stand-in.
NONE = object()


class StandIns(TorchDispatchMode):
    """Within it, code that reads numbers of meta tensors gets stand-ins."""

    def __init__(self) -> None:
        super().__init__()
        let_counts_be_listed()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation, or what stands for its result."""
        kwargs = kwargs or {}
        result = stand_in(func._schema.name, args, kwargs)
        return func(*args, **kwargs) if result is NONE else result


def stand_in(name: str, args: Any, kwargs: Any) -> Any:
    """What stands for the result of an operation that needs numbers; `NONE` where it needs none, or has them."""
    if name == "aten::_local_scalar_dense" and args[0].is_meta:
        return scalar_of(args[0])
    if name == "aten::bincount" and args[0].is_meta:
        return counts_of(args[0], kwargs.get("minlength", args[2] if len(args) > 2 else 0))
    return NONE


def scalar_of(tensor: Tensor) -> Any:
    """The number that code gets when it reads a tensor without values: zero, of the tensor's type."""
    if tensor.dtype == torch.bool:
        return False
    return 0.0 if tensor.is_floating_point() else 0


def counts_of(numbers: Tensor, classes: int) -> Tensor:
    """The result of counting classes among numbers without values: equal counts for all."""
    counts = torch.empty(classes, dtype=torch.int64, device=numbers.device)
    _counted[id(counts)] = counts, numbers.numel()
    return counts


@cache
def let_counts_be_listed() -> None:
    """Makes lists of such counts, in this process from now on."""
    listed = torch.Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        if not tensor.is_meta:
            return listed(tensor)
        _, total = _counted.get(id(tensor), (tensor, 0))
        share, rest = divmod(total, max(1, tensor.numel()))
        return [share + (place < rest) for place in range(tensor.numel())]

    torch.Tensor.tolist = tolist
