"""Steps whose layers are gathered one ahead and scattered behind: two streams in closed steps, like layers at once."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# Of a second: states of a step that differ by less are the same, against rounding.
SAME = 1e-12


class LayerTurn(NamedTuple):
    """One pass of `layers` layers that are alike: what each waits for, computes and leaves to be scattered."""

    gather: float
    compute: float
    scatter: float
    layers: int = 1


@dataclass
class _Streams:
    """When the streams are free, and when the link is busy from now on."""

    slowed: float
    computed: float = 0.0
    link: float = 0.0
    busy: deque[tuple[float, float]] = field(default_factory=deque)

    def transfer(self, seconds: float, after: float) -> float:
        """Behind all transfers before it; gives its end, and the beginning of time where there is none."""
        if not seconds:
            return 0.0
        start = max(self.link, after)
        self.link = start + seconds
        self.busy.append((start, self.link))
        return self.link

    def compute(self, seconds: float, after: float) -> None:
        """Slower while the link is busy."""
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
        """Time goes on, and all is as it was."""
        self.computed += seconds
        self.link += seconds
        self.busy = deque((start + seconds, end + seconds) for start, end in self.busy)


def gathered_step(turns: Sequence[LayerTurn], before: float, interference: float) -> tuple[float, float]:
    """The ends of computation and of transfers; `before` is what all layers wait for at first.

    The gather of a turn starts when the turn but one before is computed, the scatter of one when it is computed; the
    link takes them in the order gather, scatter of the turn before, next gather. The same as `simulate` says.
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
