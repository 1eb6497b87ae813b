"""A trial of split layers on random numbers in one process: what all workers' parts come to, beside the whole.

With random weights, because those that a model starts with may be zero, and hide what is wrong.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from paceline.frameworks.torch.module_facts import is_transposed
from paceline.frameworks.torch.tensor.dense import keep_columns
from paceline.frameworks.torch.tensor.pairs import SplitPair, tell_owner

# Of single precision: the parts add up in another order than the whole.
CLOSE = 1e-4


class _ReachedError(Exception):
    """Ends a pass at the layer by rows."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.inputs = inputs


def works(owner: nn.Module, pair: SplitPair, args: tuple[Any, ...], kwargs: dict[str, Any], ways: int) -> bool:
    """Whether all parts of the module's layers together give what the whole layers give."""
    generator = torch.Generator().manual_seed(0)
    try:
        args, kwargs = _random_call(args, kwargs, generator)
        whole = _random_copy(owner, generator)
        expected = _features_before_rows(whole, pair, args, kwargs)
        kernel = _kernel(whole.get_submodule(pair.rows))
        parts = [_part(whole, pair, args, kwargs, rank, ways) for rank in range(ways)]
        if any(part is None for part in parts):
            return False
        total = sum(part @ rows for part, rows in zip(parts, kernel.chunk(ways), strict=True))
    except Exception:  # sizes that do not fit are found by a user's own code in many ways
        return False
    product = expected.detach() @ kernel
    return bool(total.shape == product.shape and (total - product).norm() <= CLOSE * product.norm())


def _random_call(args: Any, kwargs: Any, generator: torch.Generator) -> tuple[Any, Any]:
    """The same call in single precision, with random numbers as its first argument."""
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor,
                                 (args, kwargs))  # fmt: skip
    first = args[0] if args else next(iter(kwargs.values()))
    noise = torch.randn(first.shape, generator=generator).to(first.device)
    return ((noise, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): noise})


def _random_copy(owner: nn.Module, generator: torch.Generator) -> nn.Module:
    whole = copy.deepcopy(owner).float().eval()
    with torch.no_grad():
        for parameter in whole.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / math.sqrt(parameter.shape[-1] if parameter.ndim else 1))
    return whole


def _kernel(layer: nn.Module) -> Tensor:
    """Inputs before outputs."""
    weight: Tensor = layer.get_parameter("weight").detach()
    return weight if is_transposed(layer) else weight.T


def _features_before_rows(owner: nn.Module, pair: SplitPair, args: Any, kwargs: Any) -> Tensor:
    def stop(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise _ReachedError(inputs[0])

    hook = owner.get_submodule(pair.rows).register_forward_pre_hook(stop)
    try:
        owner(*args, **kwargs)
    except _ReachedError as reached:
        return reached.inputs
    finally:
        hook.remove()
    raise ValueError("the layer by rows was not run")


def _part(whole: nn.Module, pair: SplitPair, args: Any, kwargs: Any, rank: int, ways: int) -> Tensor | None:
    """One worker's features before the layer by rows; None where a parameter in between would need a sum of gradients.

    Such a parameter is whole on every worker and sees a part of the features, as a norm of each head does.
    """
    part = copy.deepcopy(whole)
    split = [part.get_submodule(name) for name in (*pair.columns, pair.rows)]
    for layer in split[:-1]:
        keep_columns(layer, rank, ways, pair.parts)
    tell_owner(part, pair, ways)
    for layer in split[:-1]:
        # Gradients end here, so that only parameters behind have some.
        layer.register_forward_pre_hook(lambda _layer, inputs: (inputs[0].detach(), *inputs[1:]))
    features = _features_before_rows(part, pair, args, kwargs)
    features.sum().backward()
    known = {parameter for layer in split for parameter in layer.parameters()}
    between = [parameter for parameter in part.parameters() if parameter not in known and parameter.grad is not None]
    return None if between else features.detach()
