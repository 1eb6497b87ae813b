"""What XLA's profiler saw of a compiled step, device by device, put on the recorder.

The text of the program says to which pass each operation belongs: JAX writes into its name whether it is part of the
derivative (`transpose`), of the forward pass (`jvp`), or of what our step calls input and update. The n-th call of a
collective is the same transfer on every device that takes part.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from paceline.frameworks.kernels import standing
from paceline.spans import Kind, Span, SpanRecorder

# What our steps are marked with for a profiler.
STEP = "paceline step"
# Scopes of our own in the step, and the marks of JAX's transformations, the most telling first.
INPUT, UPDATE = "paceline_input", "paceline_update"
_MARKS: tuple[tuple[str, Kind], ...] = (
    (INPUT, "input"), (UPDATE, "optimizer"), ("transpose(", "backward"), ("jvp(", "forward"),
)  # fmt: skip
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Operations that only hold others, which are told by themselves.
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
    found = {}
    for line in program.splitlines():
        matched = _LINE.match(line)
        if matched is None:
            continue
        name, shape, opcode = matched.groups()
        told = _OP_NAME.search(line)
        collective = opcode.removesuffix("-start").removesuffix("-done") in _COLLECTIVES
        kind = "communication" if collective else _kind(told.group(1) if told else "")
        found[name] = Operation(kind, _bytes(shape))
    return found


def _kind(op_name: str) -> Kind:
    return next((kind for mark, kind in _MARKS if mark in op_name), "forward")


def _bytes(shape: str) -> int:
    """Of an array as XLA writes it, f32[16,64]{1,0}, or of all arrays of a tuple."""
    return sum(
        max(1, int(bits or 8) // 8) * prod(int(size) for size in sizes.split(",") if size)
        for _, bits, sizes in _ARRAY.findall(shape)
    )


def clock_ahead(began: Sequence[int], marks: Sequence[int]) -> int:
    """Nanoseconds from a profiler's clock to the recorder's, by when steps began by either."""
    return round(median(mine - theirs for mine, theirs in zip(began, sorted(marks), strict=True)))


def put_on(
    recorder: SpanRecorder, executed: Iterable[Executed], operations: Mapping[str, Operation], workers: Sequence[int]
) -> None:
    """Operations of this process's devices as spans of their workers; every worker has the steps of the process."""
    seen: dict[int, list[Executed]] = {}
    for one in executed:
        if not one.name.startswith(_HOLDERS):
            seen.setdefault(one.device, []).append(one)
    steps = [span for span in recorder.spans if span.kind == "step"]
    recorder.spans[:] = [replace(step, worker=worker) for worker in workers for step in steps]
    for device, worker in enumerate(workers):
        own = sorted(seen.get(device, ()), key=lambda one: one.start)
        transfers = _transfers(own, operations)
        computed = _in_turn(one for one in own if not _is_transfer(one, operations))
        computing = [_computation(one, operations) for one in computed]
        spans = [*computing, *transfers, *standing(transfers, computing)]
        recorder.spans += [replace(span, worker=worker) for span in spans]


def _in_turn(own: Iterable[Executed]) -> Iterator[Executed]:
    """Of operations that a device ran at once, each instant is that of the one that came first: parts add up then."""
    reached = -1
    for one in sorted(own, key=lambda one: one.start):
        if one.end > reached:
            yield replace(one, start=max(one.start, reached))
            reached = one.end


def _is_transfer(one: Executed, operations: Mapping[str, Operation]) -> bool:
    known = operations.get(one.name)
    return known.kind == "communication" if known else one.name.startswith(_COLLECTIVES)


def _computation(one: Executed, operations: Mapping[str, Operation]) -> Span:
    known = operations.get(one.name)
    return Span(known.kind if known else "forward", one.name, one.start, one.end, track="operations")


def _transfers(own: Iterable[Executed], operations: Mapping[str, Operation]) -> list[Span]:
    counts, found = Counter[str](), []
    for one in own:
        if not _is_transfer(one, operations):
            continue
        known = operations.get(one.name)
        found.append(
            Span(
                "communication", one.name, one.start, one.end, track="communication",
                bytes=known.size_bytes if known else 0, match=f"{one.name} {counts[one.name]}",
            )
        )  # fmt: skip
        counts[one.name] += 1
    return found
