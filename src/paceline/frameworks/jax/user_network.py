"""The user's JAX model as what a step needs: a pair of functions, or a module of Flax, NNX or Linen.

A module of Flax is taken as it is. Of NNX, parameters are its `nnx.Param`; `model.train()` and `model.eval()` say which
pass it is. Of Linen, parameters are the collection `params`, and an argument `train`, `training` or `deterministic`
says it. What else a module keeps (running means, keys of dropout) changes from step to step and is not trained.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.contract.context import Context
from paceline.data.tree import call, take
from paceline.errors import ModelError
from paceline.frameworks.jax.optimizer import Tree
from paceline.workloads.user_model import call_user_code

# Parameters, buffers, inputs, and whether it trains ─► outputs, and the buffers after the pass.
Forward = Callable[[Tree, Tree, Any, bool], tuple[Any, Tree]]
PARAMETERS, STATISTICS, DROPOUT_KEY = "params", "batch_stats", "dropout_key"
# What a batch norm of NNX calls its running variance.
VARIANCE = "var"
# Arguments of a Linen module that say whether it trains, and what they are then.
MODES = {"train": True, "training": True, "deterministic": False}


@dataclass(frozen=True)
class UserNetwork:
    """Starting parameters, the forward pass, and arrays that change and are not trained."""

    params: Tree
    forward: Forward
    buffers: Tree = field(default_factory=dict)
    # Layers that take statistics of the samples of a pass.
    batch_norms: tuple[str, ...] = ()


def user_network(context: Context, built: Any, inputs: Any) -> UserNetwork:
    """The model that the user's function returned; `inputs` are samples such as it will see."""
    for kind, network_of in (("nnx", _nnx_network), ("linen", _linen_network)):
        flax = sys.modules.get(f"flax.{kind}")
        if flax is not None and isinstance(built, flax.Module):
            return network_of(context, built, take(inputs, slice(1)))
    return _pair_network(context, built)


def _pair_network(context: Context, built: Any) -> UserNetwork:
    """The network of a pair of functions (init, apply)."""
    user_model = context.user_model
    assert user_model is not None
    if not (isinstance(built, tuple) and len(built) == 2 and all(map(callable, built))):
        raise ModelError(
            f"{user_model.label} returned {type(built).__name__}, not a Flax module and not a pair of functions; "
            f"return (init, apply) with init(key) giving the parameters and apply(params, inputs) the outputs"
        )
    init, apply = built
    params = call_user_code(f"init(key) of {user_model.label}", init, jax.random.key(context.spec.seed))
    return UserNetwork(params, lambda params, buffers, inputs, _trains: (call(partial(apply, params), inputs), buffers))


def _nnx_network(_context: Context, model: Any, _inputs: Any) -> UserNetwork:
    nnx: Any = sys.modules["flax.nnx"]
    graph, trained, kept = nnx.split(model, nnx.Param, ...)
    params, (raw, keys) = nnx.to_pure_dict(trained), _without_keys(nnx.to_pure_dict(kept))

    def forward(params: Tree, buffers: Tree, inputs: Any, trains: bool) -> tuple[Any, Tree]:
        states = [jax.tree.map(lambda leaf: leaf, state) for state in (trained, kept)]
        for state, values in zip(states, (params, _with_keys(buffers, keys)), strict=True):
            nnx.replace_by_pure_dict(state, values)
        module = nnx.merge(graph, *states)
        (module.train if trains else module.eval)()
        outputs = call(module, inputs)
        after = nnx.to_pure_dict(nnx.split(module, nnx.Param, ...)[2])
        return outputs, _without_keys(after)[0] if trains else buffers

    # The way to each array that it keeps; what has a running variance is a batch norm.
    ways = [[str(getattr(key, "key", key)) for key in way] for way, _ in jax.tree_util.tree_leaves_with_path(raw)]
    return UserNetwork(params, forward, raw, tuple(".".join(way[:-1]) for way in ways if way[-1] == VARIANCE))


def _linen_network(context: Context, model: Any, inputs: Any) -> UserNetwork:
    assert context.user_model is not None
    mode = next((name for name in inspect.signature(type(model).__call__).parameters if name in MODES), None)
    first, second = jax.random.split(jax.random.key(context.spec.seed))

    def moded(trains: bool) -> dict[str, bool]:
        return {} if mode is None else {mode: MODES[mode] is trains}

    def start() -> Any:
        return call(partial(model.init, {"params": first, "dropout": second}, **moded(False)), inputs)

    variables = dict(call_user_code(f"init of {context.user_model.label}", start))
    params = variables.pop(PARAMETERS, {})
    buffers = {**jax.tree.map(np.asarray, variables), DROPOUT_KEY: np.asarray(jax.random.key_data(second))}

    def forward(params: Tree, buffers: Tree, inputs: Any, trains: bool) -> tuple[Any, Tree]:
        kept = {name: tree for name, tree in buffers.items() if name != DROPOUT_KEY}
        if not trains:
            return call(partial(model.apply, {PARAMETERS: params, **kept}, **moded(False)), inputs), buffers
        key, following = jax.random.split(jax.random.wrap_key_data(buffers[DROPOUT_KEY]))
        apply = partial(
            model.apply, {PARAMETERS: params, **kept}, mutable=list(kept), rngs={"dropout": key}, **moded(True)
        )
        outputs, after = call(apply, inputs)
        return outputs, {**after, DROPOUT_KEY: jax.random.key_data(following)}

    return UserNetwork(params, forward, buffers, tuple(map(str, variables.get(STATISTICS, ()))))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_keys(tree: Tree) -> tuple[Tree, Tree]:
    """Keys of random numbers as plain arrays, which devices are given, and where they were."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree), jax.tree.map(
        _is_key, tree
    )


def _with_keys(tree: Tree, keys: Tree) -> Tree:
    return jax.tree.map(lambda leaf, is_key: jax.random.wrap_key_data(leaf) if is_key else leaf, tree, keys)
