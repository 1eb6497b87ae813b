"""What a user's pair of JAX functions is and takes, found by making its parameters and sending two samples through."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.contract.context import Context
from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import ModelError
from paceline.frameworks.jax.optimizer import Tree
from paceline.frameworks.jax.training import arrays_of, cross_entropy, user_pair
from paceline.workloads.user_model import telling_samples

SAMPLES = 2


def inspect_jax(context: Context, built: Any) -> UserModelFacts:
    """Facts of the model; raises `ModelError` when the functions do not work or do not fit the data."""
    user_model = context.user_model
    assert user_model is not None
    params, apply = user_pair(context, built)
    count = _trainable(user_model.label, params)
    inputs, targets = arrays_of(context, train=True)
    samples = telling_samples(targets)
    _pass_through(context, (params, apply), jnp.asarray(inputs[samples]), jnp.asarray(targets[samples]))
    cuts = ("plan",) if user_model.plan is not None else ()
    return UserModelFacts("jax", count, len(context.data.train_inputs), cuts=cuts)


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


def _pass_through(context: Context, pair: tuple[Tree, Any], inputs: jax.Array, targets: jax.Array) -> None:
    assert context.user_model is not None
    label, (params, apply) = context.user_model.label, pair
    shape = "x".join(map(str, inputs.shape[1:]))
    try:
        outputs = apply(params, inputs)
    except Exception as error:
        raise ModelError(
            f"apply of {label} does not take inputs of shape {shape}: {type(error).__name__}: {error}; "
            f"give the shape that it expects with --input-shape"
        ) from error
    output_shape = tuple(outputs.shape) if isinstance(outputs, jax.Array) else type(outputs).__name__
    fits = f"the output of {label} ({output_shape} for {SAMPLES} samples) does not fit its targets"
    advice = "give its class count with --classes, or a function loss(outputs, targets) in the file"
    loss = context.user_model.loss
    if loss is None and (
        output_shape != (*targets.shape, outputs.shape[-1]) or int(targets.max()) >= outputs.shape[-1]
    ):
        raise ModelError(f"{fits} of shape {tuple(targets.shape)} with classes up to {int(targets.max())}; {advice}")
    try:
        jax.grad(lambda trained: (loss or cross_entropy)(apply(trained, inputs), targets))(params)
    except Exception as error:
        raise ModelError(f"{fits}: {type(error).__name__}: {error}; {advice}") from error


def describe_structure(pair: Any) -> list[str]:
    """Names, shapes and types of its parameters, without making them."""
    init, _ = pair
    try:
        parameters = jax.eval_shape(init, jax.random.key(0))
    except Exception:  # what cannot be followed is made
        parameters = init(jax.random.key(0))
    leaves, structure = jax.tree.flatten(parameters)
    return [str(structure), *(f"{leaf.shape} {leaf.dtype}" for leaf in leaves)]
