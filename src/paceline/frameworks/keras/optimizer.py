"""PyTorch's optimizers in Keras, for every backend: Adam adds epsilon after the bias correction, decay is an L2 term.

Keras' own Adam adds epsilon before it ("epsilon hat" of Kingma and Ba), and its `weight_decay` is decoupled.
"""

from typing import Any

import keras
from keras import ops

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.spec import Optimizer as OptimizerSettings


class TorchOptimizer(keras.optimizers.Optimizer):
    """What the three share: settings, slots beside the parameters, the decay term."""

    slot_names: tuple[str, ...] = ()

    def __init__(self, settings: OptimizerSettings) -> None:
        super().__init__(learning_rate=settings.lr, name=settings.name)
        self.betas, self.eps, self.momentum = settings.betas, settings.eps, settings.momentum
        self.decay = settings.weight_decay
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
        return gradient + self.decay * ops.convert_to_tensor(variable) if self.decay else gradient

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


class Sgd(TorchOptimizer):
    """`torch.optim.SGD`, with momentum if asked."""

    def __init__(self, settings: OptimizerSettings) -> None:
        super().__init__(settings)
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


KINDS: dict[str, type[TorchOptimizer]] = {"adam": Adam, "sgd": Sgd, "adagrad": Adagrad}


def optimizer_for(
    context: Context, model: keras.Model, kinds: dict[str, type[TorchOptimizer]] = KINDS
) -> keras.optimizers.Optimizer:
    """The user's optimizer, or the one of these kinds that the run asks for; with its variables made."""
    user_model = context.model.user_model
    variables = model.trainable_variables
    chosen = user_model.optimizer(variables) if user_model is not None and user_model.optimizer is not None else None
    if user_model is not None and chosen is not None and not isinstance(chosen, keras.optimizers.Optimizer):
        raise ModelError(
            f"optimizer(variables) of {user_model.label} returned {type(chosen).__name__}, not a Keras optimizer; "
            f"return the optimizer itself"
        )
    optimizer = chosen if chosen is not None else kinds[context.spec.optimizer.name](context.spec.optimizer)
    optimizer.build(variables)
    return optimizer
