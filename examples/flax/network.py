"""A module of Flax NNX with an optimizer of optax, on made-up images; nothing is downloaded.

paceline run --model network.py --strategy jax-single,jax-data --workers 1,2 --global-batch 64
"""

import jax
import numpy as np
import optax
from flax import nnx

FEATURES, WIDTH, CLASSES = 256, 512, 10


class Network(nnx.Module):
    """Three dense layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(FEATURES, WIDTH, rngs=rngs)
        self.second = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Scores of the classes."""
        return self.head(nnx.relu(self.second(nnx.relu(self.first(images)))))


def build() -> nnx.Module:
    """The same weights in every process."""
    return Network(nnx.Rngs(0))


def optimizer(_parameters: object) -> optax.GradientTransformation:
    """AdamW behind a limit on the norm of gradients."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images that say in one of their features which class they are of."""
    return (*images(4096, seed=0), *images(512, seed=1))


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and their classes."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, CLASSES, count)
    features = random.standard_normal((count, FEATURES), dtype=np.float32)
    features[np.arange(count), classes] += 4
    return features, classes
