"""Spans of a compiled step, device by device, from what XLA's profiler saw.

Names of operations tell their pass: JAX writes `transpose` for the derivative and `jvp` for the forward pass, our step
marks input and update. The n-th call of a collective is the same transfer on every device that takes part.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from paceline.frameworks.gpu_spans import blocked_spans
from paceline.spans import Kind, Span, SpanRecorder

# What our steps are marked with for a profiler.
STEP = "paceline step"
# Scopes of our own in the step, and the marks of JAX's transformations, the most telling first.
INPUT, UPDATE = "paceline_input", "paceline_update"
_MARKS: tuple[tuple[str, Kind], ...] = (
    (INPUT, "input"), (UPDATE, "optimizer"), ("transpose(", "backward"), ("jvp(", "forward"),
)  # fmt: skip
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Operations that only hold others, which the profiler lists by themselves.
_HOLDERS = ("while", "call", "conditional", "tuple", "async")
_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\(", re.MULTILINE)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"(pred|[a-z]+)(\d*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Operation:
    """One operation of the program: its pass, and the bytes of what it gives."""

    kind: Kind
    size_bytes: int


@dataclass(frozen=True)
class Executed:
    """One operation as a device ran it, in nanoseconds of the recorder's clock."""

    name: str
    device: int
    start: int
    end: int


def operations_of(program: str) -> dict[str, Operation]:
    """Every operation of a compiled program, by its name."""
    operations = {}
    for line in program.splitlines():
        matched = _LINE.match(line)
        if matched is None:
            continue
        name, shape, opcode = matched.groups()
        op_name = _OP_NAME.search(line)
        collective = opcode.removesuffix("-start").removesuffix("-done") in _COLLECTIVES
        kind = "communication" if collective else _kind(op_name.group(1) if op_name else "")
        operations[name] = Operation(kind, _bytes(shape))
    return operations


def _kind(op_name: str) -> Kind:
    return next((kind for mark, kind in _MARKS if mark in op_name), "forward")


def _bytes(shape: str) -> int:
    """Bytes of an array as XLA writes it, f32[16,64]{1,0}, or of all arrays of a tuple."""
    return sum(
        max(1, int(bits or 8) // 8) * prod(int(size) for size in sizes.split(",") if size)
        for _, bits, sizes in _ARRAY.findall(shape)
    )


def clock_ahead(began: Sequence[int], marks: Sequence[int]) -> int:
    """Nanoseconds from a profiler's clock to the recorder's, by when steps began by either."""
    return round(median(mine - theirs for mine, theirs in zip(began, sorted(marks), strict=True)))


def add_operation_spans(
    recorder: SpanRecorder, executed: Iterable[Executed], operations: Mapping[str, Operation], workers: Sequence[int]
) -> None:
    """Operations of this process's devices as spans of their workers; every worker has the steps of the process."""
    by_device: dict[int, list[Executed]] = {}
    for operation in executed:
        if not operation.name.startswith(_HOLDERS):
            by_device.setdefault(operation.device, []).append(operation)
    steps = [span for span in recorder.spans if span.kind == "step"]
    recorder.spans[:] = [replace(step, worker=worker) for worker in workers for step in steps]
    for device, worker in enumerate(workers):
        device_operations = sorted(by_device.get(device, ()), key=lambda operation: operation.start)
        transfers = _transfers(device_operations, operations)
        computed = _without_overlap(
            operation for operation in device_operations if not _is_transfer(operation, operations)
        )
        computing = [_computation(operation, operations) for operation in computed]
        spans = [*computing, *transfers, *blocked_spans(transfers, computing)]
        recorder.spans += [replace(span, worker=worker) for span in spans]


def _without_overlap(operations: Iterable[Executed]) -> Iterator[Executed]:
    """Operations that a device ran at once, cut so that each instant belongs to the first: their times add up then."""
    reached = -1
    for operation in sorted(operations, key=lambda operation: operation.start):
        if operation.end > reached:
            yield replace(operation, start=max(operation.start, reached))
            reached = operation.end


def _is_transfer(operation: Executed, operations: Mapping[str, Operation]) -> bool:
    known = operations.get(operation.name)
    return known.kind == "communication" if known else operation.name.startswith(_COLLECTIVES)


def _computation(operation: Executed, operations: Mapping[str, Operation]) -> Span:
    known = operations.get(operation.name)
    return Span(known.kind if known else "forward", operation.name, operation.start, operation.end, track="operations")


def _transfers(executed: Iterable[Executed], operations: Mapping[str, Operation]) -> list[Span]:
    counts, spans = Counter[str](), []
    for transfer in executed:
        if not _is_transfer(transfer, operations):
            continue
        known = operations.get(transfer.name)
        spans.append(
            Span(
                "communication", transfer.name, transfer.start, transfer.end, track="communication",
                bytes=known.size_bytes if known else 0, match=f"{transfer.name} {counts[transfer.name]}",
            )
        )  # fmt: skip
        counts[transfer.name] += 1
    return spans
