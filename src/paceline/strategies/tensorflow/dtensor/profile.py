"""What TensorFlow's profiler saw of a function that runs on several devices, operation by operation.

The profiler tells threads, not devices; but each device has a thread to itself, known by the runs that it asked for. An
operation lies within a stretch of such a run. A collective is asked for there and ends elsewhere, under one number.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from paceline.breakdown import union
from paceline.frameworks.xla_spans import INPUT, STEP, UPDATE, Executed, Operation
from paceline.spans import Kind

# Names of our own and of TensorFlow's in the names of operations, the most telling first.
_MARKS: tuple[tuple[str, Kind], ...] = ((INPUT, "input"), (UPDATE, "optimizer"), ("gradient_tape/", "backward"))
# What the profiler calls the stages of a run, and the notes that tie them to each other.
_CALLED, _STRETCH = "FunctionRun", "ExecutorState::Process"
_SENT, _ARRIVED = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"
_CLOSURE, _JOINED = "CollectiveExecutor::RunClosure", "CollectiveExecutor::CompleteParams"
_COLLECTIVE, _KERNEL = "Collective", "Kernel::Run"
_GIVES, _TAKES = "_p", "_c"
_GROUP = " in group "
_CALL = "StatefulPartitionedCall/"
PICOSECONDS_PER_NANOSECOND = 1_000


@dataclass(frozen=True)
class Event:
    """Something that a thread did, in nanoseconds of the profiler's clock."""

    thread: int
    name: str
    start: int
    end: int
    notes: Mapping[str, Any] = field(default_factory=dict)


def read_events(file: Path) -> Iterator[Event]:
    """All that threads of this host did."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns + event.offset_ps // PICOSECONDS_PER_NANOSECOND
                end = start + event.duration_ps // PICOSECONDS_PER_NANOSECOND
                notes = {plane.stat_metadata[stat.metadata_id].name: _value(stat, plane) for stat in event.stats}
                yield Event(line.id, plane.event_metadata[event.metadata_id].name, start, end, notes)


def _value(stat: Any, plane: Any) -> Any:
    """Words that come more than once are kept apart, and referred to."""
    chosen = stat.WhichOneof("value")
    if chosen == "ref_value":
        return plane.stat_metadata[stat.ref_value].name
    return getattr(stat, chosen) if chosen else None


def executed(events: Iterable[Event], ahead: int) -> list[Executed]:
    """Operations and collectives of every device, in nanoseconds of a clock that is so far ahead of the profiler's."""
    threads: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        threads.setdefault(event.thread, []).append(event)
    all_events = [event for thread_events in threads.values() for event in thread_events]
    steps = union((event.start, event.end) for event in all_events if event.name == STEP)
    # What runs between the steps, to hand over an epoch's indices, may have other threads.
    calls = [event for event in all_events if event.name == _CALLED and any(a <= event.start < b for a, b in steps)]
    devices = {thread: number for number, thread in enumerate(dict.fromkeys(event.thread for event in calls))}
    runs = {event.notes[_GIVES]: devices[event.thread] for event in calls}
    ends = {event.notes[_TAKES]: event.start for event in all_events if event.name == _ARRIVED}
    groups = {closure: group for thread_events in threads.values() for closure, group in _groups(thread_events)}
    operations = [
        operation for thread_events in threads.values() for operation in _collectives(thread_events, runs, ends, groups)
    ]
    operations += [operation for thread_events in threads.values() for operation in _operations(thread_events, runs)]
    return [replace(operation, start=operation.start + ahead, end=operation.end + ahead) for operation in operations]


def _within_runs(thread_events: Iterable[Event], runs: Mapping[int, int]) -> Iterator[tuple[Event, int]]:
    """What a thread did for runs of devices, with the device: a stretch of one may lie within that of another."""
    around: list[tuple[int, int]] = []
    for event in thread_events:
        while around and around[-1][1] <= event.start:
            around.pop()
        if event.name == _STRETCH and event.notes.get(_TAKES) in runs:
            around.append((runs[event.notes[_TAKES]], event.end))
        elif around:
            yield event, around[-1][0]


def _operations(thread_events: Iterable[Event], runs: Mapping[int, int]) -> Iterator[Executed]:
    for event, device in _within_runs(thread_events, runs):
        name, colon, _ = event.name.rpartition(":")
        if colon and not name.endswith(":"):
            yield Executed(_plain_name(name), device, event.start, event.end)


def _collectives(
    thread_events: Iterable[Event], runs: Mapping[int, int], ends: Mapping[int, int], groups: Mapping[int, int]
) -> Iterator[Executed]:
    """Each collective, from when a device asks for it until it has the result; devices of a group share a transfer."""
    sent: Event | None = None
    for event, device in _within_runs(thread_events, runs):
        if event.name == _SENT:
            sent = event
        elif sent is not None and event.name.startswith(_COLLECTIVE) and event.name.endswith(_KERNEL):
            name = f"{_plain_name(str(event.notes['name']))}{_GROUP}{groups.get(event.notes[_GIVES], 0)}"
            yield Executed(name, device, sent.start, ends.get(sent.notes[_GIVES], sent.end))


def _groups(thread_events: Iterable[Event]) -> Iterator[tuple[int, int]]:
    """The group of devices that each request for a collective went to."""
    closure = None
    for event in thread_events:
        if event.name == _CLOSURE:
            closure = event.notes[_TAKES]
        elif event.name == _JOINED and closure is not None:
            yield closure, event.notes["group_key"]


def _plain_name(name: str) -> str:
    """The name of an operation without that of the call around it."""
    return name.rpartition(_CALL)[2]


def operations_of(names: Iterable[str], collectives: Mapping[str, int]) -> dict[str, Operation]:
    """The pass that each operation belongs to and, for collectives, the bytes of their results."""
    operations = {}
    for name in names:
        plain, group, _ = name.partition(_GROUP)
        operations[name] = Operation("communication", collectives.get(plain, 0)) if group else Operation(_kind(name), 0)
    return operations


def _kind(name: str) -> Kind:
    return next((kind for mark, kind in _MARKS if mark in name), "forward")


def collectives_of(functions: Iterable[Any]) -> dict[str, int]:
    """Every collective in the definitions of functions, with the bytes of what a device has of its result."""
    import tensorflow as tf

    return {
        node.name: tf.as_dtype(node.attr["T"].type).size
        * sum(prod(size.size for size in shape.dim) for shape in node.attr["_output_shapes"].list.shape)
        for function in functions
        for node in function.node_def
        if node.op.startswith(_COLLECTIVE)
    }
