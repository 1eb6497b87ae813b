"""What a user's pair of JAX functions is and takes, found by making its parameters and sending two samples through."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.contract.context import Context
from paceline.contract.user_model_facts import UserModelFacts
from paceline.data.tree import describe, map_tree, take
from paceline.errors import ModelError
from paceline.frameworks.jax.network import arrays_of, usual_loss
from paceline.frameworks.jax.optimizer import Tree
from paceline.frameworks.jax.training import optimizer_for
from paceline.frameworks.jax.user_network import UserNetwork, user_network
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import (
    USER_DATA,
    call_user_code,
    line_in_user_code,
    loss_advice,
    telling_samples,
    words_of,
)

SAMPLES = 2


def inspect_jax(context: Context, built: Any) -> UserModelFacts:
    """Facts of the model; raises `ModelError` when the functions do not work or do not fit the data."""
    user_model = context.user_model
    assert user_model is not None
    inputs, targets = arrays_of(context, train=True)
    network = user_network(context, built, inputs)
    count = _trainable(user_model.label, network.params)
    rows = telling_samples(targets)
    batch = (map_tree(jnp.asarray, take(tree, rows)) for tree in (inputs, targets))
    outputs = _pass_through(context, network, *batch)
    cuts = ("plan",) if user_model.plan is not None else ()
    one_array = isinstance(inputs, np.ndarray) and isinstance(outputs, jax.Array)
    form = None if one_array else f"takes {describe(inputs)} and returns {type(outputs).__name__}"
    return UserModelFacts(
        "jax", count, context.data.train_samples, cuts=cuts, form=form, batch_norms=network.batch_norms,
        draws=_draws(network, inputs),
    )  # fmt: skip


def _draws(network: UserNetwork, inputs: Any) -> bool:
    """Whether it draws random numbers while it trains: a second pass, with the keys that the first left, is unlike."""
    sample = map_tree(jnp.asarray, take(inputs, slice(SAMPLES)))
    first, after = network.forward(network.params, network.buffers, sample, True)
    second, _ = network.forward(network.params, after, sample, True)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return any(isinstance(sooner, jax.Array) and not jnp.array_equal(sooner, later) for sooner, later in pairs)


def _trainable(label: str, params: Tree) -> int:
    """How many numbers there are to train."""
    leaves = jax.tree.leaves(params)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise ModelError(
                f"init(key) of {label} gives a parameter that is {kind}; give arrays of floating-point numbers only"
            )
    if not leaves:
        raise ModelError(f"init(key) of {label} gives no parameters; there is nothing to train")
    return sum(int(leaf.size) for leaf in leaves)


def _pass_through(context: Context, network: UserNetwork, inputs: Any, targets: Any) -> Any:
    """Sends two samples forward and backward and through the file's metric; gives the model's outputs."""
    assert context.user_model is not None
    label = context.user_model.label
    try:
        outputs, _ = network.forward(network.params, network.buffers, inputs, True)
    except Exception as error:
        advice = "return what it expects from data()"
        if context.spec.dataset != USER_DATA:
            advice = "give the shape that it expects with --input-shape"
        raise ModelError(
            f"apply of {label} does not take inputs of shape {describe(inputs)}: {words_of(error)}; {advice}"
        ) from error
    _check_classes(context, outputs, targets)
    _check_loss(context, outputs, targets)

    def loss_of(params: Tree, inputs: Any, targets: Any) -> Any:
        outputs, _ = network.forward(params, network.buffers, inputs, True)
        return (context.user_model.loss or usual_loss)(outputs, targets)  # type: ignore[union-attr]

    def metrics_of(params: Tree, inputs: Any, targets: Any) -> Any:
        outputs, _ = network.forward(params, network.buffers, inputs, False)
        return context.user_model.named_metrics(outputs, targets)  # type: ignore[union-attr]

    gradients = call_user_code(f"the backward pass of {label}", jax.grad(loss_of), network.params, inputs, targets)
    _follow(label, jax.grad(loss_of), network.params, inputs, targets)
    call_user_code(f"metric() of {label}", context.user_model.metric_values, outputs, targets)
    _follow(f"metric() of {label}", metrics_of, network.params, inputs, targets)
    _try_update(context, network.params, gradients)
    _try_evaluation(context, network)
    return outputs


def _check_loss(context: Context, outputs: Any, targets: Any) -> None:
    """Whether the file's own loss is one number from which gradients can come."""
    assert context.user_model is not None
    if context.user_model.loss is None:
        return
    what = f"loss() of {context.user_model.label}"
    loss = call_user_code(what, context.user_model.loss, outputs, targets)
    if not isinstance(loss, jax.Array):
        raise ModelError(f"{what} is {type(loss).__name__}, from which no gradient can come; return an array of JAX")
    if loss.ndim:
        raise ModelError(f"{what} has shape {tuple(loss.shape)}; return one number, such as its mean")


def _follow(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Follows a function without numbers, as a worker's compiler does."""
    try:
        jax.eval_shape(function, *arguments)
    except Exception as error:
        raise ModelError(
            f"{what} works by itself and cannot be compiled: {type(error).__name__}{line_in_user_code(error)}; leave "
            f"out what needs numbers in Python, such as float() or if, and use jax.numpy and jax.lax"
        ) from error


def _try_update(context: Context, params: Tree, gradients: Tree) -> None:
    """Makes the optimizer as a worker does, and one update."""
    assert context.user_model is not None
    label = context.user_model.label
    optimizer = call_user_code(f"optimizer() of {label}", optimizer_for, context, params)
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        raise ModelError(
            f"optimizer(parameters) of {label} returned {type(optimizer).__name__}, which has no functions init and "
            f"update; return a transformation such as those of optax"
        )
    call_user_code(f"the first update of {label}", lambda: optimizer.update(gradients, optimizer.init(params), params))


def _try_evaluation(context: Context, network: UserNetwork) -> None:
    """Evaluates two test samples with the loss of the run."""
    assert context.user_model is not None
    tested = (map_tree(jnp.asarray, take(tree, slice(SAMPLES))) for tree in arrays_of(context, train=False))
    inputs, targets = tested
    loss = context.user_model.loss or usual_loss
    call_user_code(
        f"evaluating {context.user_model.label} on its test data",
        lambda: float(loss(network.forward(network.params, network.buffers, inputs, False)[0], targets)),
    )


def _check_classes(context: Context, outputs: Any, targets: Any) -> None:
    """JAX would take a class that is not there for another one."""
    assert context.user_model is not None
    if context.user_model.loss is not None or loss_in(outputs) is not None:
        return
    logits = logits_of(outputs)
    text = tuple(outputs.shape) if isinstance(outputs, jax.Array) else type(outputs).__name__
    unfit = f"the output of {context.user_model.label} ({text} for {SAMPLES} samples) does not fit its targets"
    advice = loss_advice(context.spec.dataset == USER_DATA, targets)
    if not isinstance(logits, jax.Array) or not isinstance(targets, jax.Array):
        raise ModelError(f"{unfit} ({describe(targets)}); {advice}")
    if jnp.issubdtype(targets.dtype, jnp.floating):
        raise ModelError(f"{unfit} ({describe(targets)}): these are no classes; {advice}")
    lowest, highest = int(targets.min()), int(targets.max())
    if logits.shape[:-1] != targets.shape or lowest < 0 or highest >= logits.shape[-1]:
        raise ModelError(f"{unfit} of shape {tuple(targets.shape)} with classes from {lowest} to {highest}; {advice}")


def describe_structure(built: Any) -> list[str]:
    """Names, shapes and types of its parameters, without making them; a module of Flax as it describes itself."""
    if not isinstance(built, tuple):
        nnx = sys.modules.get("flax.nnx")
        if nnx is None or not isinstance(built, nnx.Module):
            return [repr(built)]
        leaves, structure = jax.tree.flatten(nnx.state(built, nnx.Param))
        return [str(structure), *(f"{leaf.shape} {leaf.dtype}" for leaf in leaves)]
    init, _ = built
    try:
        parameters = jax.eval_shape(init, jax.random.key(0))
    except Exception:  # what cannot be followed is made
        parameters = init(jax.random.key(0))
    leaves, structure = jax.tree.flatten(parameters)
    return [str(structure), *(f"{leaf.shape} {leaf.dtype}" for leaf in leaves)]
