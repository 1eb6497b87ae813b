"""Training with Keras' `fit` on TensorFlow, as its tutorials do. It knows nothing of Paceline.

python benchmarks/bare/keras_fit.py DATA.npz EPOCHS BATCH

Same weights and batches as the bare loops, so `fit` does not shuffle by itself. Prints seconds, CPU seconds and mean
loss of every epoch as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent.parent))

from bare.bare_tf import BETA1, BETA2, EPSILON, LEARNING_RATE, Data, batches, use_own_cores

# Keras adds epsilon before the bias correction; this comes nearest to the same meaning in the first dozens of steps.
KERAS_EPSILON = EPSILON / 10


def compiled_model(data: Data) -> keras.Model:
    """The network with the given starting weights, and Keras' own Adam."""
    layers: list[keras.layers.Layer] = [keras.Input(data.train_images.shape[1:])]
    kernels = data.weights[::2]
    for kernel in kernels[: data.convolutions]:
        layers.append(keras.layers.Conv2D(kernel.shape[-1], kernel.shape[0], padding="same", activation="relu"))
        layers.append(keras.layers.MaxPooling2D())
    layers.append(keras.layers.Flatten())
    layers += [keras.layers.Dense(kernel.shape[-1], activation="relu") for kernel in kernels[data.convolutions : -1]]
    layers.append(keras.layers.Dense(kernels[-1].shape[-1]))
    model = keras.Sequential(layers)
    model.set_weights(data.weights)
    model.compile(
        optimizer=keras.optimizers.Adam(LEARNING_RATE, BETA1, BETA2, KERAS_EPSILON),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def fit_epoch(model: keras.Model, data: Data, rows: np.ndarray) -> float:
    """One pass over the epoch's batches; gives their mean loss."""
    images, labels = tf.gather(data.train_images, rows.ravel()), tf.gather(data.train_labels, rows.ravel())
    history = model.fit(images, labels, batch_size=rows.shape[1], epochs=1, shuffle=False, verbose=0)
    return float(history.history["loss"][0])


def loop(path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """A model of its own, ready to train; the function trains an epoch: seconds, CPU seconds, mean loss."""
    data = Data(path)
    model = compiled_model(data)

    def epoch(number: int) -> tuple[float, float, float]:
        cpu, started = time.process_time(), time.perf_counter()
        loss = fit_epoch(model, data, batches(len(data.train_images), batch, number))
        return time.perf_counter() - started, time.process_time() - cpu, loss

    return epoch


if __name__ == "__main__":
    use_own_cores()
    train = loop(sys.argv[1], int(sys.argv[3]))
    print(json.dumps([train(number) for number in range(int(sys.argv[2]))]))
