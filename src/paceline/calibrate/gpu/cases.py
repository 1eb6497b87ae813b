"""The grid of operations timed on a GPU: shapes in the range of real models, but of no particular model.

Cases are in an order of chance, so that a part that runs out of time has still seen all of its range.
"""

from collections.abc import Iterable
from itertools import product as crossed
from itertools import zip_longest
from random import Random

from paceline.costs.operations import (
    NUMBER_BYTES,
    Operation,
    OperationNumbers,
    attention,
    convolution,
    memory,
    product,
    update,
)

# Numbers of two bytes stand for both kinds, which devices multiply as fast.
NUMBERS: tuple[OperationNumbers, ...] = ("bf16", "tf32", "fp32")
HALF_AND_TF32: tuple[OperationNumbers, ...] = ("bf16", "tf32")
# Products by numbers and pass; without rounding, one pass stands for both.
PRODUCTS: tuple[tuple[OperationNumbers, bool], ...] = (
    ("bf16", False), ("bf16", True), ("tf32", False), ("tf32", True), ("fp32", False),
)  # fmt: skip
ROWS = (64, 256, 1024, 4096, 16384, 65536)
SIDES = (16, 64, 256, 1024, 4096, 16384)
# Kernels for sizes that are no multiple of eight are others: a vocabulary of GPT-2's size, and a small one.
ODD_SIDES = (1001, 50257)
# A case takes no more than this: 4 ms at a thousand billion operations per second.
MOST_FLOPS, MOST_SLOW_FLOPS, MOST_BYTES = 4e12, 4e11, 4e9
# Arrays of this size are timed on the smallest slice too: smaller ones may lie in the cache.
FEWEST_BYTES = 1e9
# Batch, then rows and columns, then inner: products of unfused attention and of experts.
BATCHED = (
    (16, 256, 64),
    (16, 1024, 64),
    (128, 256, 64),
    (128, 1024, 64),
    (512, 256, 64),
    (16, 1024, 1024),
    (64, 512, 512),
)
# Input channels, side, output channels, kernel, stride.
CONVOLUTIONS = (
    (3, 224, 64, 7, 2), (3, 224, 64, 3, 1), (1, 28, 32, 3, 1), (64, 112, 64, 3, 1), (64, 112, 128, 1, 1),
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1), (256, 56, 128, 1, 2),
    (128, 56, 128, 3, 1), (128, 56, 128, 3, 2), (128, 28, 128, 3, 1), (512, 28, 128, 1, 1), (128, 28, 512, 1, 1),
    (256, 28, 512, 1, 2), (256, 28, 256, 3, 1), (256, 28, 256, 3, 2), (256, 14, 256, 3, 1), (1024, 14, 256, 1, 1),
    (256, 14, 1024, 1, 1), (512, 14, 512, 3, 1), (512, 14, 512, 3, 2), (512, 7, 512, 3, 1), (2048, 7, 512, 1, 1),
    (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2), (32, 28, 64, 3, 1), (128, 14, 256, 3, 1), (3, 224, 768, 16, 16),
    (32, 32, 32, 5, 1), (16, 32, 64, 3, 1),
)  # fmt: skip
CONVOLVED_SAMPLES = (16, 64, 256)
# Samples, heads, length, head width. cuDNN takes half a second to plan for each that it has not seen, so that those of
# two bytes are few.
ATTENTIONS = (
    (16, 12, 1024, 64), (4, 12, 1024, 64), (64, 12, 197, 64), (32, 12, 512, 64), (128, 12, 128, 64), (2, 32, 2048, 128),
    (1, 32, 8192, 128), (64, 8, 256, 32), (2, 16, 512, 128),
)  # fmt: skip
MORE_ATTENTIONS = (
    (1, 16, 1024, 64), (64, 12, 1024, 64), (8, 12, 197, 64), (256, 12, 128, 64), (2, 16, 4096, 64), (8, 8, 256, 32),
)  # fmt: skip
# A head of keys for so many of queries.
SHARED_HEADS = ((2, 32, 8, 2048, 128),)
# Numbers, whether causal; samples, heads, heads of keys, length, head width.
AttentionCase = tuple[OperationNumbers, bool, tuple[int, ...]]
# Tokens of a sequence up to which it is an encoder's.
SHORT = 512
ELEMENTS = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
# Memory-bound operations as PyTorch calls them: arrays that each reads and writes, and whether it is of a backward
# pass.
MEMORY_NAMES: dict[str, tuple[float, bool]] = {
    "add": (3, False), "mul": (3, False), "gelu": (2, False), "gelu_backward": (3, True), "relu": (2, False),
    "threshold_backward": (3, True), "silu": (2, False), "native_layer_norm": (2, False),
    "native_layer_norm_backward": (3, True), "_to_copy": (3, False), "_log_softmax": (2, False),
    "_log_softmax_backward_data": (3, True), "sum": (1, True), "native_group_norm": (2, False),
    "native_group_norm_backward": (3, True), "native_batch_norm": (2, False), "native_batch_norm_backward": (3, True),
    "max_pool2d_with_indices": (2, False), "clone": (2, False),
    "contiguous": (2, False), "_fused_rms_norm": (2, False), "_fused_rms_norm_backward": (3, True),
}  # fmt: skip
CAST = "_to_copy"
BOTH_WIDTHS: tuple[OperationNumbers, ...] = ("bf16", "fp32")
PARAMETERS = (10_000, 300_000, 3_000_000, 30_000_000, 300_000_000)
OPTIMIZERS = ("adam", "sgd")


def product_cases() -> list[Operation]:
    """Products of all sizes, as forward and as backward passes have them."""
    sides = [(columns, inner) for columns, inner in crossed(SIDES, SIDES)]
    odd = [pair for side in ODD_SIDES for pair in ((side, 768), (side, 4096), (768, side), (4096, side))]
    cases = [
        product(numbers, rows, columns, inner, backward=backward)
        for numbers, backward in PRODUCTS
        for rows, (columns, inner) in crossed(ROWS, [*sides, *odd])
    ]
    # Gradients of weights: rows and columns are features, and what is summed over are the tokens.
    cases += [
        product(numbers, rows, columns, tokens, backward=True, sums_rows=True)
        for numbers in HALF_AND_TF32
        for (rows, columns), tokens in crossed([*sides, *odd], ROWS[2:])
    ]
    cases += [product(numbers, rows, rows, inner, batch=batch) for numbers in NUMBERS for batch, rows, inner in BATCHED]
    # Odd sizes first: no other point says what they take, and a large vocabulary is much of a small model's step.
    return sorted(_mixed(cases), key=lambda case: not (case.numbers == "bf16" and _is_odd(case)))


def _is_odd(case: Operation) -> bool:
    return any(size in ODD_SIDES for size in case.shape)


def convolution_cases() -> list[Operation]:
    """Convolutions of image models, both passes."""
    return _mixed(
        convolution(numbers, (samples, inputs, side, side, outputs, kernel, kernel, stride, 1), backward=backward)
        for (inputs, side, outputs, kernel, stride), samples, numbers, backward in crossed(
            CONVOLUTIONS, CONVOLVED_SAMPLES, NUMBERS, (False, True)
        )
    )


def attention_cases() -> list[Operation]:
    """Attention of short and long sequences, causal or not; both passes of a shape together, the most usual first."""
    few = [(samples, heads, heads, length, width) for samples, heads, length, width in ATTENTIONS]
    more = [(samples, heads, heads, length, width) for samples, heads, length, width in MORE_ATTENTIONS]
    # Kernels for four bytes need no plan.
    single: list[AttentionCase] = [("tf32", causal, shape) for shape in [*few, *more] for causal in (False, True)]
    # Long ones are causal and short ones are not, as a rule.
    half: list[AttentionCase] = [("bf16", shape[3] > SHORT, shape) for shape in [*few, *SHARED_HEADS]]
    half += [("bf16", shape[3] <= SHORT, shape) for shape in few[:3]]
    # In turn, so that both kinds are seen where there is no time for all.
    shapes = [case for pair in zip_longest(half, single) for case in pair if case is not None]
    return [
        attention(numbers, samples, (heads, key_heads), (length, length), width, causal=causal, backward=backward)
        for numbers, causal, (samples, heads, key_heads, length, width) in shapes
        for backward in (False, True)
        if length * length * samples * heads * width < MOST_SLOW_FLOPS or numbers == "bf16"
    ]


def memory_cases() -> list[Operation]:
    """Passes over memory, by what PyTorch calls them."""
    return _mixed(
        memory(numbers, elements, arrays_of(name, numbers), name, backward=MEMORY_NAMES[name][1])
        for name, elements, numbers in crossed(MEMORY_NAMES, ELEMENTS, BOTH_WIDTHS)
    )


def arrays_of(name: str, numbers: OperationNumbers) -> float:
    """How many arrays an operation of that name reads and writes; a cast has one of the other width."""
    arrays = MEMORY_NAMES[name][0]
    return arrays / 2 if name == CAST and NUMBER_BYTES[numbers] == NUMBER_BYTES["fp32"] else arrays


def update_cases() -> list[Operation]:
    """Updates of models of all sizes."""
    return [update(optimizer, parameters) for optimizer, parameters in crossed(OPTIMIZERS, PARAMETERS)]


def that_fit(cases: Iterable[Operation], share: float) -> list[Operation]:
    """Cases that take a slice with that share of the GPU no longer than the largest ones take the whole GPU."""
    most_bytes = max(MOST_BYTES * share, FEWEST_BYTES)
    return [
        case
        for case in cases
        if case.flops <= _most_flops(case) * share and (case.kind == "update" or case.moved_bytes <= most_bytes)
    ]


def _mixed(cases: Iterable[Operation]) -> list[Operation]:
    chosen = [case for case in dict.fromkeys(cases) if case.flops <= _most_flops(case)]
    chosen = [case for case in chosen if case.moved_bytes <= MOST_BYTES]
    Random(0).shuffle(chosen)
    return chosen


def _most_flops(case: Operation) -> float:
    # Attention with numbers of four bytes does not use the units that round them.
    slow = case.numbers == "fp32" or (case.kind == "attention" and case.numbers == "tf32")
    return MOST_SLOW_FLOPS if slow else MOST_FLOPS
