"""What a JAX run trains, of neutral layers or of a user's model: parameters, forward pass, loss, and its data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from paceline.contract.context import Context
from paceline.data.tree import Tree as DataTree
from paceline.data.tree import map_tree
from paceline.frameworks.jax.layout import Layout
from paceline.frameworks.jax.loaded_data import narrow
from paceline.frameworks.jax.model import build_apply
from paceline.frameworks.jax.optimizer import Tree
from paceline.frameworks.jax.user_network import Forward, user_network
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import USER_DATA, build_user_model

IMAGE_DIMENSIONS = 4
Loss = Callable[[Any, Any], Any]
# Inputs and targets, trees of arrays.
Batch = tuple[DataTree, DataTree]


@dataclass(frozen=True)
class Network:
    """What is trained: starting parameters, the forward pass, the loss."""

    params: Tree
    forward: Forward
    loss: Loss
    # Arrays that change and are not trained: running means, random states.
    buffers: Tree = field(default_factory=dict)


def network_of(context: Context, layout: Layout) -> Network:
    """The run's model: neutral layers, or the user's pair of functions or Flax module."""
    user_model = context.model.user_model
    if user_model is not None:
        inputs, _ = arrays_of(context, train=True)
        network = user_network(context, build_user_model(user_model), inputs)
        params, buffers = (jax.tree.map(np.asarray, tree) for tree in (network.params, network.buffers))
        return Network(params, _in_precision(context, network.forward), user_model.loss or usual_loss, buffers)
    weights = context.starting_weights()
    params = {name: array.reshape(layout.fold(name, array.shape)) for name, array in weights.items()}
    apply = build_apply(context.model.layers, context.data.input_shape, layout.place, context.spec.recompute)
    pure: Forward = lambda params, buffers, inputs, _trains: (apply(params, inputs), buffers)  # noqa: E731
    return Network(params, _in_precision(context, pure), usual_loss)


def _in_precision(context: Context, forward: Forward) -> Forward:
    """The forward pass; with bf16, in half precision from single-precision parameters."""
    if context.spec.precision != "bf16":
        return forward

    def in_half(params: Tree, buffers: Tree, inputs: Any, trains: bool) -> tuple[Any, Tree]:
        params, inputs = jax.tree.map(_halved, (params, inputs))
        outputs, after = forward(params, buffers, inputs, trains)
        return outputs, jax.tree.map(lambda new, old: new.astype(old.dtype), after, buffers)

    return in_half


def cross_entropy(outputs: Array, targets: Array) -> Array:
    """Mean cross-entropy over samples, and over positions for sequences; classes may be of any whole type."""
    shares = jax.nn.log_softmax(outputs.astype(jnp.float32))
    classes = targets.astype(jnp.int32)
    return -jnp.take_along_axis(shares, classes[..., None], axis=-1, mode="promise_in_bounds").mean()


def usual_loss(outputs: Any, targets: Any) -> Array:
    """The loss that the model computed itself, or cross-entropy of its logits."""
    loss = loss_in(outputs)
    return cross_entropy(logits_of(outputs), targets) if loss is None else loss


def arrays_of(context: Context, train: bool) -> tuple[DataTree, DataTree]:
    """Inputs and targets as JAX takes them: images channels-last, whole numbers of eight bytes in four."""
    data = context.data
    inputs, targets = (data.train_inputs, data.train_targets) if train else (data.test_inputs, data.test_targets)
    # Data that come with the user's model, or were made in the shape that it asks for, are in its own order.
    as_given = context.model.user_model is not None and context.spec.dataset in (USER_DATA, "synthetic")

    def turned(array: np.ndarray) -> np.ndarray:
        images = array.ndim == IMAGE_DIMENSIONS and not as_given
        return narrow(np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if images else array)

    return map_tree(turned, inputs), map_tree(narrow, targets)


def samples_at(data: Batch, rows: Array | None) -> Batch:
    """Some samples of data that lie on the devices; without their numbers, data that are the samples."""
    if rows is None:
        return data
    inputs, targets = map_tree(lambda array: array.at[rows].get(mode="promise_in_bounds"), data)
    return inputs, targets


def _halved(array: Any) -> Any:
    return array.astype(jnp.bfloat16) if jnp.issubdtype(array.dtype, jnp.floating) else array
