"""PyTorch's optimizers in Keras, for every backend: Adam adds epsilon after the bias correction, decay is an L2 term.

Keras' own Adam adds epsilon before it ("epsilon hat" of Kingma and Ba), and its `weight_decay` is decoupled, as here
that of AdamW alone.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.spec import Optimizer as OptimizerSettings


class RunSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of each step of the run, looked up in a table; after its end, that of the last step."""

    def __init__(self, settings: OptimizerSettings, total_steps: int, updates_per_step: int = 1) -> None:
        # Several updates make a step where workers update on their own.
        self._rates = np.array([settings.lr * factor for factor in settings.lr_factors(total_steps)], np.float32)
        self._updates_per_step = updates_per_step

    def __call__(self, step: Any) -> Any:
        """The rate after so many updates."""
        number = ops.cast(step, "int64") // self._updates_per_step
        return ops.take(self._rates, ops.minimum(number, len(self._rates) - 1))

    def get_config(self) -> dict[str, Any]:
        """All that it knows."""
        return {"rates": self._rates.tolist(), "updates_per_step": self._updates_per_step}


class TorchOptimizer(keras.optimizers.Optimizer):
    """What all of them share: settings, slots beside the parameters, the decay term."""

    slot_names: tuple[str, ...] = ()

    def __init__(self, settings: OptimizerSettings, schedule: RunSchedule | None = None) -> None:
        super().__init__(learning_rate=settings.lr if schedule is None else schedule, name=settings.name)
        self.betas, self.eps, self.momentum = settings.betas, settings.eps, settings.momentum
        self.settings = settings
        self._slots: dict[str, list[Any]] = {}

    def build(self, variables: list[Any]) -> None:
        """One array of zeros per slot and variable."""
        if self.built:
            return
        super().build(variables)
        self._slots = {name: self.add_optimizer_variables(variables, name) for name in self.slot_names}

    def slots(self, variable: Any) -> list[Any]:
        """What is kept beside this variable."""
        index = self._get_variable_index(variable)
        return [self._slots[name][index] for name in self.slot_names]

    def decayed(self, gradient: Any, variable: Any) -> Any:
        """The gradient with the L2 term; the table of an embedding may have come as its rows only."""
        gradient = ops.convert_to_tensor(gradient)
        if not self.settings.decays(len(variable.shape)):
            return gradient
        return gradient + self.settings.weight_decay * ops.convert_to_tensor(variable)

    def step_number(self) -> Any:
        """The number of the step, counted from 1."""
        return ops.cast(self.iterations + 1, "float32")


class Adam(TorchOptimizer):
    """`torch.optim.Adam`."""

    slot_names = ("first_moment", "second_moment")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        gradient, (first, second) = self.decayed(gradient, variable), self.slots(variable)
        (beta1, beta2), step = self.betas, self.step_number()
        self.assign_add(first, (gradient - first) * (1 - beta1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - beta2))
        root = ops.sqrt(second / (1 - ops.power(beta2, step)))
        self.assign_sub(variable, learning_rate / (1 - ops.power(beta1, step)) * first / (root + self.eps))


class DecoupledDecay(TorchOptimizer):
    """Shrinks a variable before its update, and leaves the gradient as it is: Loshchilov and Hutter, ICLR 2019."""

    def decayed(self, gradient: Any, variable: Any) -> Any:
        """The gradient alone."""
        return ops.convert_to_tensor(gradient)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        if self.settings.decays(len(variable.shape)):
            shrinking = learning_rate * self.settings.weight_decay
            self.assign_sub(variable, shrinking * ops.convert_to_tensor(variable))
        super().update_step(gradient, variable, learning_rate)


class AdamW(DecoupledDecay, Adam):
    """`torch.optim.AdamW`."""


class Sgd(TorchOptimizer):
    """`torch.optim.SGD`, with momentum if asked."""

    def __init__(self, settings: OptimizerSettings, schedule: RunSchedule | None = None) -> None:
        super().__init__(settings, schedule)
        self.slot_names = ("velocity",) if settings.momentum else ()

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        gradient = self.decayed(gradient, variable)
        for velocity in self.slots(variable):
            self.assign(velocity, self.momentum * velocity + gradient)
            gradient = velocity
        self.assign_sub(variable, learning_rate * gradient)


class Adagrad(TorchOptimizer):
    """`torch.optim.Adagrad`."""

    slot_names = ("sum_of_squares",)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        gradient, (total,) = self.decayed(gradient, variable), self.slots(variable)
        self.assign_add(total, ops.square(gradient))
        self.assign_sub(variable, learning_rate * gradient / (ops.sqrt(total) + self.eps))


KINDS: dict[str, type[TorchOptimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": Sgd, "adagrad": Adagrad}


def optimizer_for(
    context: Context,
    model: keras.Model,
    kinds: dict[str, type[TorchOptimizer]] = KINDS,
    updates_per_step: int = 1,
) -> keras.optimizers.Optimizer:
    """The user's optimizer, or the one of these kinds that the run asks for; with its variables made."""
    user_model, settings = context.model.user_model, context.spec.optimizer
    variables = model.trainable_variables
    if user_model is not None and user_model.optimizer is not None:
        optimizer = without_scheduler(user_model.label, user_model.optimizer(variables))
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ModelError(
                f"optimizer(variables) of {user_model.label} returned {type(optimizer).__name__}, not a Keras "
                f"optimizer; return the optimizer itself"
            )
    else:
        schedule = RunSchedule(settings, context.total_steps, updates_per_step) if settings.scheduled else None
        optimizer = kinds[settings.name](settings, schedule)
    optimizer.build(variables)
    return optimizer


def without_scheduler(label: str, returned: Any) -> Any:
    """What `optimizer(variables)` of a user's file returned; a scheduler beside it is refused."""
    if isinstance(returned, tuple | list):
        raise ModelError(
            f"optimizer() of {label} returns {len(returned)} values; a Keras optimizer is given its schedule as "
            f"learning_rate (keras.optimizers.schedules): return the optimizer alone"
        )
    return returned
