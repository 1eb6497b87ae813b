"""The run's optimizer with TensorFlow's fused kernels: same meaning, but one pass over each variable."""

from typing import Any

import keras
import tensorflow as tf

from paceline.frameworks.keras import optimizer as keras_optimizer
from paceline.frameworks.keras.optimizer import TorchOptimizer

# What updates of one variable by several workers at once come to is undefined without a lock; it costs one nothing.
LOCKING = True


def _handle(variable: Any) -> Any:
    """The resource handle of a variable for a kernel that writes to it; under a strategy, that of the updated copy."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle


class Adam(keras_optimizer.Adam):
    """`ResourceApplyAdam` adds epsilon before the bias correction, so it is given one that was corrected too."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        first, second = self.slots(variable)
        (beta1, beta2), step = self.betas, self.step_number()
        beta2_power = tf.pow(beta2, step)
        tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(first),
            v=_handle(second),
            beta1_power=tf.pow(beta1, step),
            beta2_power=beta2_power,
            lr=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=self.eps * tf.sqrt(1 - beta2_power),
            grad=self.decayed(gradient, variable),
            use_locking=LOCKING,
        )


class AdamW(keras_optimizer.DecoupledDecay, Adam):
    """The same, with decoupled weight decay."""


class Sgd(keras_optimizer.Sgd):
    """Stochastic gradient descent, with or without momentum."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        gradient, slots = self.decayed(gradient, variable), self.slots(variable)
        if slots:
            tf.raw_ops.ResourceApplyMomentum(
                var=_handle(variable),
                accum=_handle(slots[0]),
                lr=learning_rate,
                grad=gradient,
                momentum=self.momentum,
                use_locking=LOCKING,
            )
        else:
            tf.raw_ops.ResourceApplyGradientDescent(
                var=_handle(variable), alpha=learning_rate, delta=gradient, use_locking=LOCKING
            )


class Adagrad(keras_optimizer.Adagrad):
    """`ResourceApplyAdagradV2` is the form that has an epsilon."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        tf.raw_ops.ResourceApplyAdagradV2(
            var=_handle(variable),
            accum=_handle(self.slots(variable)[0]),
            lr=learning_rate,
            epsilon=self.eps,
            grad=self.decayed(gradient, variable),
            use_locking=LOCKING,
        )


KINDS: dict[str, type[TorchOptimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": Sgd, "adagrad": Adagrad}
