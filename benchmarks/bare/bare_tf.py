"""A plain TensorFlow training loop in one process, as a careful person writes it by hand. It knows nothing of Paceline.

python benchmarks/bare/bare_tf.py DATA.npz EPOCHS BATCH

Prints seconds, CPU seconds and mean loss of every epoch as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

LEARNING_RATE, BETA1, BETA2, EPSILON = 0.001, 0.9, 0.999, 1e-7


class Data:
    """The arrays of DATA.npz as tensors in memory, images with channels last."""

    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self.train_images = tf.constant(arrays["train_inputs"].transpose(0, 2, 3, 1))
            self.test_images = tf.constant(arrays["test_inputs"].transpose(0, 2, 3, 1))
            self.train_labels = tf.constant(arrays["train_targets"])
            self.test_labels = tf.constant(arrays["test_targets"])
            self.convolutions = len(arrays["channels"])
            self.weights = [arrays[f"weight{n}"] for n in range(int(arrays["weights"]))]


class Network:
    """Convolutions with pooling before ReLU (the same result for a quarter of the work), then dense layers."""

    def __init__(self, data: Data) -> None:
        self.variables = [tf.Variable(weight) for weight in data.weights]
        self._convolutions = data.convolutions

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        pairs = list(zip(self.variables[::2], self.variables[1::2], strict=True))
        for kernel, bias in pairs[: self._convolutions]:
            x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)
            x = tf.nn.relu(tf.nn.max_pool2d(x, 2, 2, "VALID"))
        x = tf.reshape(x, (-1, np.prod(x.shape[1:])))
        for kernel, bias in pairs[self._convolutions : -1]:
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))
        kernel, bias = pairs[-1]
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)


class Adam:
    """As in the paper's algorithm 1, with TensorFlow's fused kernel."""

    def __init__(self, variables: list[tf.Variable]) -> None:
        self._variables = variables
        self._first = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        self._second = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        self._step = tf.Variable(0.0)

    def apply(self, gradients: list[tf.Tensor]) -> None:
        step = self._step.assign_add(1.0)
        power1, power2 = tf.pow(BETA1, step), tf.pow(BETA2, step)
        epsilon = EPSILON * tf.sqrt(1 - power2)
        for variable, first, second, gradient in zip(
            self._variables, self._first, self._second, gradients, strict=True
        ):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=first.handle, v=second.handle, beta1_power=power1, beta2_power=power2,
                lr=LEARNING_RATE, beta1=BETA1, beta2=BETA2, epsilon=epsilon, grad=gradient,
            )  # fmt: skip


def batches(samples: int, batch: int, epoch: int) -> np.ndarray:
    """The epoch's shuffled batches, one row of sample numbers per step."""
    steps = samples // batch
    order = np.random.Generator(np.random.PCG64([0, epoch])).permutation(samples)[: steps * batch]
    return order.reshape(steps, batch)


def training_step(data: Data, network: Network) -> Callable[[tf.Tensor], tf.Tensor]:
    """A traced function: sample numbers in, loss out."""
    adam = Adam(network.variables)

    @tf.function
    def step(index: tf.Tensor) -> tf.Tensor:
        images, labels = tf.gather(data.train_images, index), tf.gather(data.train_labels, index)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
            loss = tf.reduce_mean(losses)
        adam.apply(tape.gradient(loss, network.variables))
        return loss

    return step


def train_epoch(step: Callable[[tf.Tensor], tf.Tensor], rows: np.ndarray) -> list[tf.Tensor]:
    """One pass; the losses stay tensors so that nothing waits for them."""
    return [step(index) for index in tf.constant(rows)]


def evaluate(network: Network, data: Data, batch: int = 512) -> float:
    """Accuracy on the test images, outside the timed part as in any tidy script."""
    right = 0
    for start in range(0, len(data.test_labels), batch):
        labels = data.test_labels[start : start + batch]
        right += int(
            tf.reduce_sum(tf.cast(tf.argmax(network(data.test_images[start : start + batch]), 1) == labels, "int32"))
        )
    return right / len(data.test_labels)


def use_own_cores() -> None:
    """TensorFlow looks at the machine's cores, not at those that this process may use."""
    tf.config.threading.set_intra_op_parallelism_threads(len(os.sched_getaffinity(0)))
    tf.config.threading.set_inter_op_parallelism_threads(1)


def loop(path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """A model of its own, ready to train; the function trains an epoch: seconds, CPU seconds, mean loss."""
    data = Data(path)
    network = Network(data)
    step = training_step(data, network)

    def epoch(number: int) -> tuple[float, float, float]:
        cpu, started = time.process_time(), time.perf_counter()
        losses = train_epoch(step, batches(len(data.train_images), batch, number))
        loss = float(tf.reduce_mean(tf.stack(losses)))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        evaluate(network, data)
        return seconds, cpu, loss

    return epoch


if __name__ == "__main__":
    use_own_cores()
    train = loop(sys.argv[1], int(sys.argv[3]))
    print(json.dumps([train(number) for number in range(int(sys.argv[2]))]))
