"""The run's optimizer in PyTorch, and learning rates that change from step to step.

A schedule, the run's own or a scheduler that a user's file returns, is stepped by the optimizer's own `step`, so that
it counts the updates that are made, whoever makes them. Making an optimizer imports PyTorch's compiler (over a second);
for eager runs `lean` makes a subclass that does not.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.spec import Optimizer as OptimizerSettings
from paceline.workloads.lightning_module import PacedScheduler

_DECORATED = ("add_param_group", "zero_grad")
# The key of a parameter group under which it knows the group of the user's that it is a part of.
_ORIGIN = "origin"


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
    # No fused form knows complex numbers.
    real = not any(parameter.is_complex() for parameter in parameters)
    adam = {"betas": settings.betas, "eps": settings.eps, "fused": real, "capturable": graphed}
    kinds: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
        "adam": (torch.optim.Adam, adam),
        "adamw": (torch.optim.AdamW, adam),
        "sgd": (torch.optim.SGD, {"momentum": settings.momentum, "fused": fused and real}),
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


class Scheduler(Protocol):
    """What PyTorch's schedulers and the run's own have in common."""

    def step(self) -> None:
        """After an update: the learning rate of the next one."""

    def state_dict(self) -> dict[str, Any]:
        """What it knows of the updates that were made."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state again."""


class RunSchedule:
    """The schedule of the run's settings, whatever groups the optimizer's parameters are in."""

    def __init__(self, optimizer: Optimizer, settings: OptimizerSettings, total_steps: int) -> None:
        self._optimizer, self._settings, self._total_steps, self._done = optimizer, settings, total_steps, 0
        self._apply()

    def step(self) -> None:
        """One more update was made."""
        self._done += 1
        self._apply()

    def _apply(self) -> None:
        rate = self._settings.lr * self._settings.lr_factor(self._done, self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """How many updates were made."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the learning rate to what it is after so many updates."""
        self._done = int(state["done"])
        self._apply()


class UserSchedule:
    """A user's scheduler, which knows the optimizer's groups as they were when the user made both.

    A strategy may cut groups into smaller ones later; each of those then takes the settings of the one it is from.
    `updates` is how many are made for each of the scheduler's own steps.
    """

    def __init__(self, optimizer: Optimizer, scheduler: Any, updates: int = 1) -> None:
        self._optimizer, self._scheduler, self._groups = optimizer, scheduler, list(optimizer.param_groups)
        self._updates, self._done = updates, 0
        for number, group in enumerate(self._groups):
            group[_ORIGIN] = number

    def step(self) -> None:
        """Steps the user's scheduler where it is due, and hands on what it set."""
        self._done += 1
        if self._done % self._updates:
            return
        current = self._optimizer.param_groups
        self._optimizer.param_groups = self._groups
        self._scheduler.step()
        self._optimizer.param_groups = current
        self._hand_on()

    def _hand_on(self) -> None:
        for group in self._optimizer.param_groups:
            source = self._groups[group[_ORIGIN]]
            group.update({name: value for name, value in source.items() if name != "params"})

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own state, and the rates that it set."""
        rates = [float(group["lr"]) for group in self._groups]
        return {"scheduler": self._scheduler.state_dict(), "rates": rates, "done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The scheduler's own state, and the rates."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._done = int(state["done"])
        for group, rate in zip(self._groups, state["rates"], strict=True):
            group["lr"] = rate
        self._hand_on()


def follow(optimizer: Optimizer, scheduler: Scheduler) -> Optimizer:
    """Has each of the optimizer's steps step the scheduler."""
    plain: Callable[..., Any] = optimizer.step

    # PyTorch's schedulers look at the function for a mark of their own.
    @wraps(plain)
    def step(*arguments: Any, **named: Any) -> Any:
        result = plain(*arguments, **named)
        scheduler.step()
        return result

    optimizer.step = step
    optimizer.scheduler = scheduler
    return optimizer


def with_schedule(context: Context, optimizer: Optimizer) -> Optimizer:
    """The optimizer with the run's schedule, if the run has one."""
    settings = context.spec.optimizer
    if not settings.scheduled:
        return optimizer
    return follow(optimizer, RunSchedule(optimizer, settings, context.total_steps))


def scheduler_of(optimizer: Any) -> Scheduler | None:
    """What steps with the optimizer; None where its learning rate stays as it is."""
    scheduler: Scheduler | None = getattr(optimizer, "scheduler", None)
    return scheduler


def user_optimizer(label: str, returned: Any, steps_per_epoch: Callable[[], int] = lambda: 1) -> Optimizer:
    """What `optimizer(parameters)` of a user's file returned: an optimizer, or one with a scheduler."""
    pace = 1
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], PacedScheduler):
        paced = returned[1]
        returned, pace = (returned[0], paced.scheduler), paced.every * (steps_per_epoch() if paced.of_epochs else 1)
    if not isinstance(returned, tuple):
        optimizer: Optimizer = returned
        return optimizer
    if len(returned) != 2 or not isinstance(returned[0], Optimizer) or not hasattr(returned[1], "step"):
        kinds = ", ".join(type(part).__name__ for part in returned)
        raise ModelError(
            f"optimizer() of {label} returns ({kinds}); return an optimizer, or (optimizer, scheduler) with a "
            f"scheduler such as those of torch.optim.lr_scheduler"
        )
    optimizer, scheduler = returned
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ModelError(
            f"optimizer() of {label} returns ReduceLROnPlateau, which asks for a measured loss; return a scheduler "
            f"that is stepped after each update, such as CosineAnnealingLR"
        )
    return follow(optimizer, UserSchedule(optimizer, scheduler, pace))
