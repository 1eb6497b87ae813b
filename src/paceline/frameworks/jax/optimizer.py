"""The run's optimizer in JAX, with PyTorch's meaning of every setting, as a pair of pure functions in optax's form."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.spec import Optimizer as OptimizerSettings

Tree = Any


@dataclass(frozen=True)
class Transformation:
    """`init(params)` gives the state; `update(gradients, state, params)` gives parameter changes and the new state."""

    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def make_optimizer(
    settings: OptimizerSettings, total_steps: int, dimensions: Callable[[Tree], Tree] | None = None
) -> Transformation:
    """The optimizer with the run's settings, for a run of so many steps.

    `dimensions` gives how many each parameter has where parameters are stored in other shapes than the model's.
    """
    kinds = {"adam": _adam, "adamw": _adam, "sgd": _sgd, "adagrad": _adagrad}
    optimizer = kinds[settings.name](settings)
    if settings.weight_decay:
        of_each = dimensions or (lambda params: jax.tree.map(jnp.ndim, params))
        optimizer = _with_decay(settings, optimizer, of_each)
    return _with_schedule(settings, optimizer, total_steps) if settings.scheduled else optimizer


def _with_decay(
    settings: OptimizerSettings, optimizer: Transformation, dimensions: Callable[[Tree], Tree]
) -> Transformation:
    """Weight decay as an L2 term of the gradient; for AdamW as a change of its own, which no moment sees."""

    def decay_of(params: Tree, factor: float) -> Tree:
        return jax.tree.map(
            lambda param, ndim: factor * param if settings.decays(ndim) else jnp.zeros((), param.dtype),
            params,
            dimensions(params),
        )

    def update(gradients: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        if settings.name != "adamw":
            decayed = jax.tree.map(jnp.add, gradients, decay_of(params, settings.weight_decay))
            return optimizer.update(decayed, state, params)
        change, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, change, decay_of(params, -settings.lr * settings.weight_decay)), state

    return Transformation(optimizer.init, update)


def _with_schedule(settings: OptimizerSettings, optimizer: Transformation, total_steps: int) -> Transformation:
    """Every change is proportional to the learning rate, so a schedule is a factor of it, looked up by the step."""
    factors = np.array(settings.lr_factors(total_steps), np.float32)

    def init(params: Tree) -> Tree:
        return {"done": jnp.zeros((), jnp.int32), "optimizer": optimizer.init(params)}

    def update(gradients: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        change, inner = optimizer.update(gradients, state["optimizer"], params)
        factor = jnp.asarray(factors)[jnp.minimum(state["done"], len(factors) - 1)]
        scaled = jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), change)
        return scaled, {"done": state["done"] + 1, "optimizer": inner}

    return Transformation(init, update)


def _zeros(params: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, params)


def _adam(settings: OptimizerSettings) -> Transformation:
    """Kingma and Ba, 2015; epsilon is added to the root of the corrected second moment."""
    beta1, beta2 = settings.betas

    def init(params: Tree) -> Tree:
        return {"count": jnp.zeros((), jnp.int32), "mean": _zeros(params), "square": _zeros(params)}

    def correction(beta: float, count: jax.Array) -> jax.Array | float:
        # 1 - beta ** count, without the loss of digits that it would have in single precision.
        return -jnp.expm1(count * math.log(beta)) if beta else 1.0

    def update(gradients: Tree, state: Tree, _params: Tree) -> tuple[Tree, Tree]:
        count = state["count"] + 1
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["mean"], gradients)
        square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["square"], gradients)
        step, root = settings.lr / correction(beta1, count), jnp.sqrt(correction(beta2, count))
        change = jax.tree.map(lambda m, v: -step * m / (jnp.sqrt(v) / root + settings.eps), mean, square)
        return change, {"count": count, "mean": mean, "square": square}

    return Transformation(init, update)


def _sgd(settings: OptimizerSettings) -> Transformation:
    """Stochastic gradient descent; with momentum it keeps a velocity."""
    if not settings.momentum:
        return Transformation(lambda _params: (), lambda g, state, _params: (_scaled(g, -settings.lr), state))

    def update(gradients: Tree, velocity: Tree, _params: Tree) -> tuple[Tree, Tree]:
        velocity = jax.tree.map(lambda v, g: settings.momentum * v + g, velocity, gradients)
        return _scaled(velocity, -settings.lr), velocity

    return Transformation(_zeros, update)


def _adagrad(settings: OptimizerSettings) -> Transformation:
    """Duchi, Hazan and Singer, 2011."""

    def update(gradients: Tree, squares: Tree, _params: Tree) -> tuple[Tree, Tree]:
        squares = jax.tree.map(lambda s, g: s + g * g, squares, gradients)
        change = jax.tree.map(lambda g, s: -settings.lr * g / (jnp.sqrt(s) + settings.eps), gradients, squares)
        return change, squares

    return Transformation(_zeros, update)


def _scaled(tree: Tree, factor: float) -> Tree:
    return jax.tree.map(lambda leaf: factor * leaf, tree)
