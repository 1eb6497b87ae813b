"""The run's optimizer in PyTorch.

Making one imports PyTorch's compiler (over a second); for eager runs `lean` makes a subclass that does not.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.spec import Optimizer as OptimizerSettings

_DECORATED = ("add_param_group", "zero_grad")


def make_optimizer(
    settings: OptimizerSettings, parameters: Iterable[torch.nn.Parameter], eager: bool, graphed: bool = False
) -> Optimizer:
    """The optimizer with the run's settings, in its fused form where there is one."""
    parameters = list(parameters)
    # The fused form of SGD does not know tensors that are divided over ranks, and moves those of two bytes on a CPU
    # wrongly (PyTorch 2.13).
    fused = not any(
        hasattr(parameter, "to_local") or (parameter.itemsize == 2 and parameter.device.type == "cpu")
        for parameter in parameters
    )
    adam = {"betas": settings.betas, "eps": settings.eps, "fused": True, "capturable": graphed}
    kinds: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
        "adam": (torch.optim.Adam, adam),
        "adamw": (torch.optim.AdamW, adam),
        "sgd": (torch.optim.SGD, {"momentum": settings.momentum, "fused": fused}),
        "adagrad": (torch.optim.Adagrad, {"eps": settings.eps}),
    }
    if settings.name == "lbfgs":
        # It puts all gradients into one row, and cannot where they lie in another order than their dimensions.
        for parameter in parameters:
            parameter.data = parameter.data.contiguous()
        # One iteration per step and no line search: each step is one look at one global batch, as for the others.
        return torch.optim.LBFGS(parameters, lr=settings.lr, max_iter=1, history_size=settings.history)
    kind, options = kinds[settings.name]
    groups = decay_groups(settings, parameters)
    return (lean(kind) if eager else kind)(groups, lr=settings.lr, weight_decay=settings.weight_decay, **options)


def decay_groups(settings: OptimizerSettings, parameters: list[torch.nn.Parameter]) -> list[Any]:
    """The parameters, in two groups where some of them are not decayed."""
    if settings.weight_decay_on == "all":
        return parameters
    apart = [parameter for parameter in parameters if not settings.decays(parameter.ndim)]
    decayed = [parameter for parameter in parameters if settings.decays(parameter.ndim)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": apart, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def lean(kind: type[Optimizer]) -> type[Optimizer]:
    """The optimizer class without the decorators that import the compiler; unchanged in other PyTorch versions."""
    plain = {name: getattr(getattr(Optimizer, name), "__wrapped__", None) for name in _DECORATED}
    step = getattr(kind.step, "__wrapped__", None)
    if step is None or not all(plain.values()):
        return kind
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(step)})
