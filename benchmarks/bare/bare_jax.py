"""A plain JAX training loop in one process, as a careful person writes it by hand. It knows nothing of Paceline.

python benchmarks/bare/bare_jax.py DATA.npz EPOCHS BATCH

Prints seconds, CPU seconds and mean loss of every epoch as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

LEARNING_RATE, BETA1, BETA2, EPSILON = 0.001, 0.9, 0.999, 1e-7


class Data:
    """The arrays of DATA.npz in memory, images with channels fastest."""

    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self.train = self._placed(arrays["train_inputs"], arrays["train_targets"])
            self.test = self._placed(arrays["test_inputs"], arrays["test_targets"])
            self.weights = [jnp.asarray(arrays[f"weight{n}"]) for n in range(int(arrays["weights"]))]

    @staticmethod
    def _placed(images: np.ndarray, labels: np.ndarray) -> tuple[Array, Array]:
        return jnp.asarray(images.transpose(0, 2, 3, 1)), jnp.asarray(labels.astype(np.int32))


def forward(weights: list[Array], x: Array) -> Array:
    """Kernels and biases in turn; pooling before bias and ReLU gives the same result for a quarter of the work."""
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    for number, (kernel, bias) in enumerate(layers):
        if kernel.ndim == 4:
            x = jax.nn.relu(pool((convolve_gray if x.shape[-1] == 1 else convolve)(x, kernel)) + bias)
        else:
            x = x.reshape(len(x), -1) @ kernel + bias
            x = jax.nn.relu(x) if number + 1 < len(layers) else x
    return x


def convolve(x: Array, kernel: Array) -> Array:
    """Keeps the size of the image."""
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def convolve_gray(x: Array, kernel: Array) -> Array:
    """The same of images with one channel, whose kernel gradient XLA is slow at."""
    return convolve(x, kernel)


def _gray_gradient(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = kept
    side = x.shape[1]
    edged = jnp.pad(x[..., 0], ((0, 0), (1, 1), (1, 1)))
    views = jnp.stack([edged[:, i : i + side, j : j + side].ravel() for i in range(3) for j in range(3)])
    return jnp.zeros_like(x), (views @ gradient.reshape(-1, kernel.shape[-1])).reshape(kernel.shape)


convolve_gray.defvjp(lambda x, kernel: (convolve(x, kernel), (x, kernel)), _gray_gradient)


def squares(x: Array) -> list[Array]:
    """The four pixels of each square of an image, as four smaller images."""
    high, wide = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    return [x[:, i:high:2, j:wide:2] for i in (0, 1) for j in (0, 1)]


@jax.custom_vjp
def pool(x: Array) -> Array:
    """The largest of each square of four pixels."""
    a, b, c, d = squares(x)
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


def _pool_gradient(kept: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    x, largest = kept
    a, b, c, _ = squares(x)
    chosen = jnp.where(a == largest, 0, jnp.where(b == largest, 1, jnp.where(c == largest, 2, 3))).astype(jnp.int16)
    numbers = jnp.arange(4, dtype=jnp.int16).reshape(1, 1, 2, 1, 2, 1)
    spread = jnp.where(chosen[:, :, None, :, None] == numbers, gradient[:, :, None, :, None], 0)
    n, high, wide, channels = largest.shape
    spread = spread.reshape(n, 2 * high, 2 * wide, channels)
    return (jnp.pad(spread, ((0, 0), (0, x.shape[1] - 2 * high), (0, x.shape[2] - 2 * wide), (0, 0))),)


pool.defvjp(lambda x: (pool(x), (x, pool(x))), _pool_gradient)


def loss_of(weights: list[Array], images: Array, labels: Array) -> Array:
    """Mean cross-entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(forward(weights, images)), labels[:, None], 1).mean()


def starting_state(data: Data) -> Any:
    """Weights, Adam's two moments, and the count of steps."""
    zeros = [jnp.zeros_like(weight) for weight in data.weights]
    return data.weights, zeros, [jnp.zeros_like(weight) for weight in data.weights], jnp.zeros((), jnp.float32)


@jax.jit
def train_step(state: Any, train: tuple[Array, Array], rows: Array) -> tuple[Any, Array]:
    """One step of Adam on the samples in `rows`."""
    weights, means, squares, count = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, train[0][rows], train[1][rows])
    count = count + 1
    rate, root = LEARNING_RATE / (1 - BETA1**count), jnp.sqrt(1 - BETA2**count)
    means = [BETA1 * mean + (1 - BETA1) * gradient for mean, gradient in zip(means, gradients, strict=True)]
    squares = [BETA2 * square + (1 - BETA2) * gradient**2 for square, gradient in zip(squares, gradients, strict=True)]
    weights = [
        weight - rate * mean / (jnp.sqrt(square) / root + EPSILON)
        for weight, mean, square in zip(weights, means, squares, strict=True)
    ]
    return (weights, means, squares, count), loss


def batches(samples: int, batch: int, epoch: int) -> list[np.ndarray]:
    """The epoch's shuffled batches: the sample numbers of each step."""
    steps = samples // batch
    order = np.random.Generator(np.random.PCG64([0, epoch])).permutation(samples)[: steps * batch]
    return list(order.reshape(steps, batch).astype(np.int32))


def train_epoch(state: Any, data: Data, rows: list[np.ndarray]) -> tuple[Any, list[Array]]:
    """One pass, to its end; the losses stay on the device so that nothing waits for them in between."""
    losses = []
    for index in rows:
        state, loss = train_step(state, data.train, index)
        losses.append(loss)
    jax.block_until_ready(state)
    return state, losses


@partial(jax.jit, static_argnums=2)
def _right(weights: list[Array], test: tuple[Array, Array], batch: int, start: int) -> Array:
    images, labels = (lax.dynamic_slice_in_dim(array, start, batch) for array in test)
    return (forward(weights, images).argmax(1) == labels).sum()


def evaluate(state: Any, data: Data, batch: int = 500) -> float:
    """Accuracy on the test images, outside the timed part as in any tidy script."""
    total = len(data.test[1])
    batch = min(batch, total)
    right = sum(int(_right(state[0], data.test, batch, start)) for start in range(0, total - batch + 1, batch))
    return right / (total // batch * batch)


def loop(path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """A model of its own, ready to train; the function trains an epoch: seconds, CPU seconds, mean loss."""
    data = Data(path)
    state = starting_state(data)

    def epoch(number: int) -> tuple[float, float, float]:
        nonlocal state
        cpu, started = time.process_time(), time.perf_counter()
        state, losses = train_epoch(state, data, batches(len(data.train[0]), batch, number))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        evaluate(state, data)
        return seconds, cpu, float(jnp.stack(losses).mean())

    return epoch


if __name__ == "__main__":
    train = loop(sys.argv[1], int(sys.argv[3]))
    print(json.dumps([train(number) for number in range(int(sys.argv[2]))]))
