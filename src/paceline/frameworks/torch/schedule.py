"""Learning rates that change from step to step: the run's own schedule, or a scheduler that a user's file returns.

Either is stepped by the optimizer's own `step`, so that it counts the updates that are made, whoever makes them.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import torch

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.spec import Optimizer as OptimizerSettings

# The key of a parameter group under which it knows the group of the user's that it is a part of.
_ORIGIN = "origin"


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

    def __init__(self, optimizer: torch.optim.Optimizer, settings: OptimizerSettings, total_steps: int) -> None:
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
        """As after so many updates."""
        self._done = int(state["done"])
        self._apply()


class UserSchedule:
    """A user's scheduler, which knows the optimizer's groups as they were when the user made both.

    A strategy may cut groups into smaller ones later; each of those then takes the settings of the one it is from.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self._optimizer, self._scheduler, self._groups = optimizer, scheduler, list(optimizer.param_groups)
        for number, group in enumerate(self._groups):
            group[_ORIGIN] = number

    def step(self) -> None:
        """Steps the user's scheduler and hands on what it set."""
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
        return {"scheduler": self._scheduler.state_dict(), "rates": [float(group["lr"]) for group in self._groups]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The scheduler's own state, and the rates."""
        self._scheduler.load_state_dict(state["scheduler"])
        for group, rate in zip(self._groups, state["rates"], strict=True):
            group["lr"] = rate
        self._hand_on()


def follow(optimizer: torch.optim.Optimizer, scheduler: Scheduler) -> torch.optim.Optimizer:
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


def with_schedule(context: Context, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer with the run's schedule, if the run has one."""
    settings = context.spec.optimizer
    if not settings.scheduled:
        return optimizer
    return follow(optimizer, RunSchedule(optimizer, settings, context.total_steps))


def scheduler_of(optimizer: Any) -> Scheduler | None:
    """What steps with the optimizer; None where its learning rate stays as it is."""
    scheduler: Scheduler | None = getattr(optimizer, "scheduler", None)
    return scheduler


def user_optimizer(label: str, returned: Any) -> torch.optim.Optimizer:
    """What `optimizer(parameters)` of a user's file returned: an optimizer, or one with a scheduler."""
    if not isinstance(returned, tuple):
        optimizer: torch.optim.Optimizer = returned
        return optimizer
    if len(returned) != 2 or not isinstance(returned[0], torch.optim.Optimizer) or not hasattr(returned[1], "step"):
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
    return follow(optimizer, UserSchedule(optimizer, scheduler))
