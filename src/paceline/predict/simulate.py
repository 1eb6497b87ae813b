"""Steps simulated as streams: computation and transfers of a rank that wait for each other and slow each other.

Ranks that do the same are simulated once. While a rank transfers, its computation loses `interference` of each second;
on a GPU that is little, on a core that also has to move the bytes it is nearly all.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

# Of a second: states of a step that differ by less are the same, against rounding.
SAME = 1e-12
# Blom, "Statistical Estimates and Transformed Beta-Variables", 1958: the mean of the largest of n normal numbers.
BLOM = 0.375
NORMAL = NormalDist()


def overlap(segments: Sequence[float], transfers: Sequence[float], interference: float = 0.0) -> tuple[float, float]:
    """When computation and transfers end, if each segment of computation is followed by a transfer of its result.

    In closed form: this is what data-parallel steps are made of. Gives the end of the computation and the end of the
    transfers.
    """
    now = link_free = 0.0
    slowed = 1 + interference
    for work, transfer in zip(segments, transfers, strict=True):
        shared = max(0.0, link_free - now)
        now = now + work * slowed if shared >= work * slowed else now + shared + work - shared / slowed
        link_free = max(link_free, now) + transfer
    return now, link_free


class LayerTurn(NamedTuple):
    """One pass of `layers` equal layers: the gather that each waits for, its computation, its reduce-scatter."""

    gather: float
    compute: float
    scatter: float
    layers: int = 1


@dataclass
class _Streams:
    """When the two streams of a rank are free, and until when the link is busy."""

    slowed: float
    computed: float = 0.0
    link: float = 0.0
    busy: deque[tuple[float, float]] = field(default_factory=deque)

    def transfer(self, seconds: float, after: float) -> float:
        """Queues a transfer behind all earlier ones and gives its end; without a transfer, time zero."""
        if not seconds:
            return 0.0
        start = max(self.link, after)
        self.link = start + seconds
        self.busy.append((start, self.link))
        return self.link

    def compute(self, seconds: float, after: float) -> None:
        """Runs a computation, slower while the link is busy, and gives its end."""
        now, left = max(self.computed, after), seconds
        while self.busy:
            start, end = self.busy[0]
            if end <= now:
                self.busy.popleft()
                continue
            if start > now:
                free = min(left, start - now)
                now, left = now + free, left - free
            if not left:
                break
            shared = min(left * self.slowed, end - now)
            now, left = now + shared, left - shared / self.slowed
            if left <= SAME:
                left = 0.0
                break
        self.computed = now + left

    def skip(self, seconds: float) -> None:
        """Moves all times forward by so many seconds."""
        self.computed += seconds
        self.link += seconds
        self.busy = deque((start + seconds, end + seconds) for start, end in self.busy)


def gathered_step(turns: Sequence[LayerTurn], before: float, interference: float) -> tuple[float, float]:
    """When computation and transfers of an FSDP step end; `before` is what the first layer waits for.

    The gather of a turn starts when the turn but one before is computed, the scatter of one when it is computed; the
    link takes them in the order gather, scatter of the turn before, next gather.
    """
    streams = _Streams(1 + interference)
    needed = max(streams.transfer(before, 0.0), streams.transfer(turns[0].gather, 0.0))
    for place, turn in enumerate(turns):
        following = turns[place + 1].gather if place + 1 < len(turns) else 0.0
        left, state = turn.layers, (0.0, 0.0)
        while left:
            after = streams.computed
            gathered = streams.transfer(turn.gather if left > 1 else following, after)
            streams.compute(turn.compute, needed)
            ended = streams.computed
            streams.transfer(turn.scatter, ended)
            needed, left = gathered, left - 1
            reached = streams.link - ended, needed - ended
            if left > 1 and abs(reached[0] - state[0]) < SAME and abs(reached[1] - state[1]) < SAME:
                # Each of the layers that are left takes as long as this one.
                skipped = (left - 1) * (ended - after)
                streams.skip(skipped)
                needed, left = needed + skipped, 1
            state = reached
    return streams.computed, streams.link


def largest_of(count: int, deviation: float) -> float:
    """How much above its mean the largest of `count` normal numbers is expected, for ranks that differ by chance."""
    if count < 2 or not deviation:
        return 0.0
    return deviation * NORMAL.inv_cdf((count - BLOM) / (count + 1 - 2 * BLOM))


@dataclass(frozen=True)
class Served:
    """Asynchronous workers at servers: updates per second, and updates by others between a fetch and its push."""

    updates_per_second: float
    staleness: float


# From so many workers on, a queue is so long that its mean length is as good as the queue itself.
QUEUED_WORKERS = 64
QUEUED_UPDATES = 40


def serve(cycles: Sequence[float], service: float) -> Served:
    """Workers that each compute for their cycle, then stand in line for `service` seconds of the server."""
    workers = len(cycles)
    if workers > QUEUED_WORKERS:
        free = sum(1 / (cycle + service) for cycle in cycles)
        rate = min(free, 1 / service) if service else free
        return Served(rate, workers - 1.0)
    coming: list[tuple[float, int]] = []
    for worker, cycle in enumerate(cycles):
        heappush(coming, (cycle * (1 + worker / workers), worker))
    version, fetched = 0, [0] * workers
    server_free, stale, wanted = 0.0, 0, workers * QUEUED_UPDATES
    while version < wanted:
        arrived, worker = heappop(coming)
        server_free = max(server_free, arrived) + service
        stale += version - fetched[worker]
        version += 1
        fetched[worker] = version
        heappush(coming, (server_free + cycles[worker], worker))
    return Served(version / server_free, stale / version)


def combined(*deviations: float) -> float:
    """Independent relative deviations combined: the root of the sum of squares."""
    return sqrt(sum(deviation * deviation for deviation in deviations))
