"""Models so small that the host's work for them is all that a step takes; what each step asks for is counted."""

from dataclasses import dataclass

from paceline.workloads.layers import Block, Conv, Dense, Embed, Flatten, Layer, MaxPool, Norm, Shape

WIDTH, HEADS, LENGTH, TOKENS, BLOCKS = 64, 2, 32, 256, 8


@dataclass(frozen=True)
class TinyModel:
    """Layers, and the samples of a step; tokens where there is a vocabulary."""

    layers: tuple[Layer, ...]
    shape: Shape
    samples: int
    vocabulary: int = 0
    classes: int = 0


TINY_MODELS = {
    "transformer": TinyModel(
        (Embed(TOKENS, WIDTH), *(Block(HEADS) for _ in range(BLOCKS)), Norm(), Dense(TOKENS)), (LENGTH,), 2,
        vocabulary=TOKENS,
    ),
    "cnn": TinyModel(
        (Conv(8), MaxPool(), Conv(16), MaxPool(), Conv(16), Flatten(), Dense(64, relu=True), Dense(16)), (1, 16, 16), 4,
        classes=16,
    ),
    "mlp": TinyModel((*(Dense(64, relu=True) for _ in range(BLOCKS)), Dense(16)), (64,), 8, classes=16),
}  # fmt: skip
