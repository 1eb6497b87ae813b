"""What a compiler makes of operations: those between products, convolutions and attention become one pass over memory.

PyTorch's and XLA's compilers leave products, convolutions and attention to libraries and fuse all that is pointwise or
a reduction between them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from paceline.costs.operations import Operation


def fused(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The same operations with each run of memory-bound ones as one, which reads once what the run hands on."""
    return _fused(tuple(operations))


@cache
def _fused(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    made: list[Operation] = []
    run: list[Operation] = []
    for operation in operations:
        if operation.kind == "memory" and not operation.waits and operation.count == 1:
            run.append(operation)
            continue
        made += [*_as_one(run), operation]
        run = []
    return (*made, *_as_one(run))


def _as_one(run: Sequence[Operation]) -> list[Operation]:
    if len(run) < 2:
        return list(run)
    moved = run[0].moved_bytes
    for before, operation in pairwise(run):
        # What the one before has just written is not read again: half of the smaller.
        moved += operation.moved_bytes - min(operation.moved_bytes, before.moved_bytes) / 2
    largest = max(run, key=lambda operation: operation.moved_bytes)
    return [replace(largest, moved_bytes=moved, name="", flops=sum(operation.flops for operation in run))]
