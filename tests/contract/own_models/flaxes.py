"""Modules of Flax with two inputs, running means and dropout, and an optimizer of optax."""

import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

WIDTH, CLASSES = 12, 4


class Nnx(nnx.Module):
    """Takes its inputs by name."""

    def __init__(self, rngs):
        self.hidden, self.norm = nnx.Linear(WIDTH, 16, use_bias=False, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
        self.drop, self.head = nnx.Dropout(0.1, rngs=rngs), nnx.Linear(16, CLASSES, rngs=rngs)

    def __call__(self, vector, mask):
        return self.head(self.drop(nnx.relu(self.norm(self.hidden(vector))))) * mask[:, None]


class Linen(linen.Module):
    """The same in Linen, which is told whether it trains."""

    @linen.compact
    def __call__(self, vector, mask, train=False):
        hidden = linen.BatchNorm(use_running_average=not train)(linen.Dense(16, use_bias=False)(vector))
        hidden = linen.Dropout(0.1, deterministic=not train)(linen.relu(hidden))
        return {"logits": linen.Dense(CLASSES)(hidden) * mask[:, None]}


def nnx_module():
    return Nnx(nnx.Rngs(0))


def linen_module():
    return Linen()


def data():
    generator = np.random.default_rng(0)
    parts = []
    for count in (64, 24):
        vector = generator.normal(size=(count, WIDTH)).astype("float32")
        parts += [
            {"vector": vector, "mask": generator.random(count) > 0.1},
            vector[:, :CLASSES].argmax(1).astype("uint8"),
        ]
    return tuple(parts)


def optimizer(parameters):
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 50)))


def metric(outputs, targets):
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return {"right": (logits.argmax(-1) == targets).mean(), "largest": jnp.abs(logits).mean()}
