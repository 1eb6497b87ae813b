"""The grid of operations that is timed on a core: shapes between those of models that fit one, none in particular."""

from collections.abc import Iterator
from itertools import chain
from itertools import product as crossed
from random import Random

from paceline.calibrate.gpu.cases import CAST, MEMORY_NAMES
from paceline.costs.operations import Operation, attention, convolution, memory, product, recurrent, update

ROWS, SIDES = (8, 32, 128, 512, 2048), (16, 64, 256, 1024, 4096)
# Heads of classifiers and vocabularies: sizes that are no multiple of eight.
ODD_SIDES = (10, 1001)
# A case takes no more than about ten milliseconds, and no case's arrays fill the memory.
MOST_FLOPS, MOST_BYTES = 6e8, 4e7
# Batch, then rows and columns, then inner: products of attention that is not one kernel.
BATCHED = ((32, 64, 32), (64, 64, 64), (16, 128, 64))
# Input channels, side, output channels, kernel, stride.
CONVOLUTIONS = (
    (1, 28, 32, 3, 1), (1, 28, 128, 3, 1), (3, 32, 32, 3, 1), (3, 32, 64, 7, 2), (3, 32, 192, 4, 4), (3, 64, 64, 7, 2),
    (32, 32, 32, 3, 1), (32, 14, 64, 3, 1), (64, 16, 64, 3, 1), (64, 16, 128, 3, 2), (64, 16, 256, 1, 1),
    (256, 16, 64, 1, 1), (128, 14, 256, 3, 1), (128, 8, 128, 3, 1), (128, 4, 256, 3, 2), (256, 4, 256, 3, 1),
    (256, 7, 512, 3, 1), (256, 4, 512, 1, 2), (512, 2, 512, 3, 1),
)  # fmt: skip
CONVOLVED_SAMPLES = (4, 16, 64)
# Images have so few channels that what is given to their layer needs no gradient.
IMAGE_CHANNELS = 3
# Samples, heads, length, head width.
ATTENTIONS = (
    (4, 4, 32, 16), (16, 4, 64, 24), (4, 4, 64, 32), (16, 4, 64, 32), (8, 4, 64, 48), (16, 3, 65, 64), (2, 8, 128, 64),
    (2, 4, 256, 64),
)  # fmt: skip
# Layers of an LSTM: positions, samples, inputs, width.
RECURRENT = (
    (8, 4, 32, 32), (32, 8, 32, 64), (16, 32, 64, 64), (64, 16, 64, 96), (16, 16, 128, 128), (48, 16, 128, 128),
    (8, 64, 64, 160), (24, 8, 256, 256),
)  # fmt: skip
# Memory-bound operations that are timed beside those of GPUs: arrays that each reads and writes, and whether it is of a
# backward pass. By tanh a GELU takes a core several times as long as the exact one.
CORE_NAMES: dict[str, tuple[float, bool]] = {
    "gelu_tanh": (2, False), "gelu_tanh_backward": (3, True), "silu_backward": (3, True),
    "max_pool2d_with_indices_backward": (3, True),
}  # fmt: skip
ELEMENTS = (1 << 15, 1 << 18, 1 << 21)
PARAMETERS, OPTIMIZERS = (10_000, 300_000, 3_000_000, 10_000_000), ("adam", "sgd")


def core_cases() -> list[Operation]:
    """All operations to time, in single precision and random order: large and small ones of all kinds side by side."""
    operations = chain(_products(), _convolutions(), _attentions(), _recurrent(), _passes_over_memory())
    within = (case for case in dict.fromkeys(operations) if case.flops <= MOST_FLOPS and case.moved_bytes <= MOST_BYTES)
    cases = [*within, *_updates()]
    Random(0).shuffle(cases)
    return cases


def _products() -> Iterator[Operation]:
    """Products of forward passes, of gradients of inputs, and of gradients of weights, which sum over rows."""
    sides = [*crossed(SIDES, SIDES), *((odd, side) for odd in ODD_SIDES for side in SIDES)]
    for rows, (columns, inner) in crossed(ROWS, sides):
        yield product("fp32", rows, columns, inner)
        yield product("fp32", rows, inner, columns, backward=True)
        yield product("fp32", columns, inner, rows, backward=True, sums_rows=True)
    for batch, rows, inner in BATCHED:
        yield product("fp32", rows, rows, inner, batch=batch)


def _convolutions() -> Iterator[Operation]:
    for (inputs, side, outputs, kernel, stride), samples in crossed(CONVOLUTIONS, CONVOLVED_SAMPLES):
        shape = (samples, inputs, side, side, outputs, kernel, kernel, stride, 1)
        yield convolution("fp32", shape)
        yield convolution("fp32", shape, backward=True, gradients=1 if inputs <= IMAGE_CHANNELS else 2)


def _attentions() -> Iterator[Operation]:
    for (samples, heads, length, width), causal, backward in crossed(ATTENTIONS, (False, True), (False, True)):
        sizes = (heads, heads), (length, length), width
        yield attention("fp32", samples, *sizes, causal=causal, backward=backward)


def _recurrent() -> Iterator[Operation]:
    for shape, backward in crossed(RECURRENT, (False, True)):
        yield recurrent("fp32", (*shape, 1), backward=backward)


def _passes_over_memory() -> Iterator[Operation]:
    for (name, (arrays, backward)), elements in crossed({**MEMORY_NAMES, **CORE_NAMES}.items(), ELEMENTS):
        if name != CAST:
            yield memory("fp32", elements, arrays, name, backward=backward)


def _updates() -> Iterator[Operation]:
    for optimizer, parameters in crossed(OPTIMIZERS, PARAMETERS):
        yield update(optimizer, parameters)
