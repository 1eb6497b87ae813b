"""A Keras model with two inputs by name and a type of its own for each."""

import keras
import numpy as np
from keras import ops

WIDTH, CLASSES = 6, 3


def two_inputs():
    vector, image = keras.Input((WIDTH,), name="vector"), keras.Input((4, 4, 1), name="image", dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 255)(image)
    seen = keras.layers.Flatten()(keras.layers.Conv2D(2, 3, activation="relu")(scaled))
    joined = keras.layers.Concatenate()([keras.layers.Dense(8, activation="tanh")(vector), seen])
    return keras.Model({"vector": vector, "image": image}, {"logits": keras.layers.Dense(CLASSES)(joined)})


def data():
    generator, parts = np.random.default_rng(0), []
    for count in (64, 20):
        vector = generator.normal(size=(count, WIDTH)).astype("float32")
        image = generator.integers(0, 256, (count, 4, 4, 1)).astype("uint8")
        parts += [{"vector": vector, "image": image}, vector[:, :CLASSES].argmax(1).astype("int32")]
    return tuple(parts)


def metric(outputs, targets):
    right = ops.equal(ops.cast(ops.argmax(outputs["logits"], -1), "int32"), ops.cast(targets, "int32"))
    return {"right": ops.mean(ops.cast(right, "float32"))}
