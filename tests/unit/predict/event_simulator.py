"""An event simulator of tasks on streams, against which the closed forms of `paceline.predict.simulate` are tested."""

from collections.abc import Sequence
from dataclasses import dataclass

# Below this a task is done: a picosecond, against rounding.
DONE = 1e-12
# A rank, and whether it is its stream of transfers; and the numbers of the tasks on each stream, in order.
Stream = tuple[int, bool]
Queues = dict[Stream, list[int]]


@dataclass(frozen=True)
class Task:
    """Work on a stream. `after` are numbers of tasks that must be done before."""

    rank: int
    transfers: bool
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Times:
    """When each task began and ended."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def total(self) -> float:
        """The end of the last task."""
        return max(self.ends, default=0.0)


def simulate(tasks: Sequence[Task], interference: float = 0.0) -> Times:
    """Streams take their tasks in the order given. Raises if tasks wait for each other in a circle."""
    queues: Queues = {}
    for number, task in enumerate(tasks):
        queues.setdefault((task.rank, task.transfers), []).append(number)
    if not interference:
        return _in_turn(tasks, queues)
    places = dict.fromkeys(queues, 0)
    begins, ends = [-1.0] * len(tasks), [-1.0] * len(tasks)
    left = [task.seconds for task in tasks]
    now, open_tasks = 0.0, len(tasks)
    while open_tasks:
        active = _active(tasks, queues, places, ends)
        if not active:
            raise ValueError("tasks wait for each other")
        busy = {stream for stream, _ in active}
        rates = {
            number: 1 / (1 + interference) if interference and not stream[1] and (stream[0], True) in busy else 1.0
            for stream, number in active
        }
        passed = min(left[number] / rates[number] for _, number in active)
        now += passed
        for stream, number in active:
            if begins[number] < 0:
                begins[number] = now - passed
            left[number] -= passed * rates[number]
            if left[number] <= DONE:
                ends[number] = now
                places[stream] += 1
                open_tasks -= 1
    return Times(tuple(begins), tuple(ends))


def _in_turn(tasks: Sequence[Task], queues: Queues) -> Times:
    """Without interference: a task starts when its stream is free and the tasks it waits for are done."""
    begins, ends = [-1.0] * len(tasks), [-1.0] * len(tasks)
    places, done = dict.fromkeys(queues, 0), 0
    while done < len(tasks):
        before = done
        for stream, numbers in queues.items():
            place = places[stream]
            while place < len(numbers):
                number = numbers[place]
                waits = [ends[other] for other in tasks[number].after]
                if waits and min(waits) < 0:
                    break
                begins[number] = max(waits, default=0.0)
                if place:
                    begins[number] = max(begins[number], ends[numbers[place - 1]])
                ends[number] = begins[number] + tasks[number].seconds
                place += 1
            done += place - places[stream]
            places[stream] = place
        if done == before:
            raise ValueError("tasks wait for each other")
    return Times(tuple(begins), tuple(ends))


def _active(
    tasks: Sequence[Task], queues: Queues, places: dict[Stream, int], ends: Sequence[float]
) -> list[tuple[Stream, int]]:
    """The first task of each stream, if it waits for nothing."""
    active = []
    for stream, numbers in queues.items():
        if places[stream] < len(numbers):
            number = numbers[places[stream]]
            if all(ends[other] >= 0 for other in tasks[number].after):
                active.append((stream, number))
    return active
