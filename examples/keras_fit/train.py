"""Keras' `fit` on TensorFlow, with Paceline's callback; several workers are a MultiWorkerMirroredStrategy.

paceline run train.py --workers 1,2
"""

import argparse
import json
import os
import time

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if WORLD > 1:
    # TensorFlow wants an address for each worker, and looks for them when it is imported.
    first = int(os.environ["MASTER_PORT"])
    addresses = [f"{os.environ['MASTER_ADDR']}:{first + number}" for number in range(WORLD)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": RANK}})
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402 - after what they read when they are imported
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import paceline  # noqa: E402


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
        if RANK == 0:
            print(f"samples/s {self._samples / (time.perf_counter() - self._began):.1f}", flush=True)


def main() -> None:
    """Trains a small network on made-up images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker in a step")
    parser.add_argument("--steps", type=int, default=300, help="of each epoch")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    samples = options.batch * options.steps * WORLD
    images = random.standard_normal((samples, 256), dtype=np.float32)
    classes = random.integers(0, 10, samples)
    data = tf.data.Dataset.from_tensor_slices((images, classes)).batch(options.batch * WORLD, drop_remainder=True)

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if WORLD > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        layers = [keras.layers.Dense(512, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss)
    model.fit(
        data,
        epochs=options.epochs,
        verbose=0,
        callbacks=[paceline.callbacks.keras_callback(options.batch), Clock(samples)],
    )


if __name__ == "__main__":
    main()
