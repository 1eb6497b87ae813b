"""What a compiler makes of operations: those between products, convolutions and attention become one pass over memory.

PyTorch's and XLA's compilers leave products, convolutions and attention to libraries and fuse all that is pointwise or
a reduction between them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from paceline.costs.operations import NUMBER_BYTES, Operation, OperationNumbers, memory, product

MULTIPLE = 8
# Sums over all rows read everything once more: gradients of biases, of norms' scales and shifts.
APART = {"sum", "native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward",
         "_fused_rms_norm_backward"}  # fmt: skip


def fused(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations with each sequence of memory-bound ones merged into one, as a compiler fuses them."""
    return _fused(tuple(operations))


@cache
def _fused(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    kernels: list[Operation] = []
    run: list[Operation] = []
    for operation in operations:
        if operation.plain_name in APART:
            kernels.append(operation)
            continue
        if operation.kind == "memory" and not operation.waits and operation.count == 1:
            run.append(operation)
            continue
        kernels += [*_as_one(run), _padded(operation)]
        run = []
    return (*kernels, *_as_one(run))


def _padded(operation: Operation) -> Operation:
    """The product with sides rounded up to multiples of eight, as PyTorch's compiler pads for faster kernels."""
    if operation.kind != "product" or not any(side % MULTIPLE for side in operation.shape[1:]):
        return operation
    batch, *sides = operation.shape
    return replace(operation, shape=(batch, *(-(-side // MULTIPLE) * MULTIPLE for side in sides)), call="")


def _as_one(run: Sequence[Operation]) -> list[Operation]:
    """One memory pass for a fused sequence: it reads the first input, writes the last output, and any extra arrays."""
    if len(run) < 2:
        return list(run)
    arrays = [operation.shape[0] * NUMBER_BYTES[operation.numbers] for operation in run]
    beside = sum(max(0.0, operation.moved_bytes - 2 * array) for operation, array in zip(run, arrays, strict=True))
    largest = max(run, key=lambda operation: operation.moved_bytes)
    moved = min(arrays[0] + arrays[-1] + beside, sum(operation.moved_bytes for operation in run))
    flops = sum(operation.flops for operation in run)
    return [replace(largest, moved_bytes=moved, name="", flops=flops, call="")]


# Sequences' heads that a block of Megatron-LM's fused softmax takes at once; where they do not divide into such blocks,
# it falls back on PyTorch's operations (NVIDIA/Megatron-LM, megatron/core/fusions/fused_softmax.py).
SOFTMAX_BLOCK = 4


def unfused(operation: Operation) -> tuple[Operation, ...]:
    """Attention as separate kernels: the scores go through memory for scaling, masking and softmax."""
    samples, heads, _, queries, keys, width, _ = operation.shape
    n, batch, back = operation.numbers, samples * heads, operation.backward
    scores = product(n, queries, keys, width, batch=batch, backward=back)
    values = product(n, queries, width, keys, batch=batch, backward=back)
    elements = batch * queries * keys
    streamed = _softmax_of_scores(n, elements, back, whole_blocks=batch % SOFTMAX_BLOCK == 0)
    # Each product has two gradients, of as many operations.
    return (scores, *streamed, values) if not back else (values, values, *streamed, scores, scores)


def _softmax_of_scores(numbers: OperationNumbers, elements: int, back: bool, whole_blocks: bool) -> Sequence[Operation]:
    """Scores scaled, masked and made to sum to one, in two passes over them.

    Where blocks are not full, in one pass for each step, cast to single precision before and back behind.
    """
    softmax = memory(numbers, elements, 3 if back else 2, "_softmax", backward=back)
    if whole_blocks:
        return memory(numbers, elements, 2, "masked_fill", backward=back), softmax
    cast = memory("fp32", elements, 3 / 2, "_to_copy", backward=back)
    scaled, masked = (memory("fp32", elements, 2, name, backward=back) for name in ("mul", "masked_fill"))
    return cast, scaled, masked, memory("fp32", elements, 3 if back else 2, "_softmax", backward=back), cast
