"""Keras' `fit` on TensorFlow, with Paceline's callback.

Keras 3 does not spread `fit` over processes with TensorFlow, so this is a script of one worker.

paceline run train.py
"""

import argparse
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import paceline


class Clock(keras.callbacks.Callback):
    """Prints the samples/s of each epoch."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples, self._began = samples, 0.0

    def on_epoch_begin(self, _epoch: int, logs: object = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, _epoch: int, logs: object = None) -> None:
        """Reads the clock."""
        print(f"samples/s {self._samples / (time.perf_counter() - self._began):.1f}", flush=True)


def main() -> None:
    """Trains a small network on made-up images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker in a step")
    parser.add_argument("--steps", type=int, default=300, help="of each epoch")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    samples = options.batch * options.steps
    images = random.standard_normal((samples, 256), dtype=np.float32)
    classes = random.integers(0, 10, samples)
    data = tf.data.Dataset.from_tensor_slices((images, classes)).batch(options.batch)
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(
        data,
        epochs=options.epochs,
        verbose=0,
        callbacks=[paceline.callbacks.keras_callback(options.batch), Clock(samples)],
    )


if __name__ == "__main__":
    main()
