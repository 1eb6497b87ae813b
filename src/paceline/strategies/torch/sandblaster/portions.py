"""Which worker computes which portion of a batch: portions are handed out on demand, and slow ones a second time.

Backup tasks as in Dean et al., NIPS 2012, section 4.2. The coordinator's threads, one per worker, share one scheduler.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median
from threading import Condition
from time import monotonic

# A portion that takes this many times as long as the middle one so far is slow.
SLOW_FACTOR = 2.0
# The middle is that of the last so many portions, so that it follows the machine.
REMEMBERED = 64
# So that a thread that waits for a portion to become slow does not wake just before it is.
MARGIN_SECONDS = 0.001


@dataclass
class Assignment:
    """A portion that a worker computes, and since when."""

    worker: int
    started: float


class PortionScheduler:
    """Hands out the portions of one step after the other and keeps which results count."""

    def __init__(self, portions: int, workers: int) -> None:
        self._portions = portions
        self._changed = Condition()
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._present = workers
        self._failure: BaseException | None = None
        self.step_losses: list[float] = []
        self.handed_out = [0] * workers
        self.backups = self.backups_used = 0
        self._open()

    def _open(self) -> None:
        self._left = deque(range(self._portions))
        self._assignments: dict[int, list[Assignment]] = {portion: [] for portion in range(self._portions)}
        self._losses: dict[int, float] = {}
        self._arrived = 0

    @property
    def step(self) -> int:
        """The step that is being worked on."""
        return len(self.step_losses)

    def next_portion(self, worker: int, step: int) -> int | None:
        """A portion for this worker, or None when the step is over; waits while there is neither."""
        with self._changed:
            while self.step == step and self._failure is None:
                portion = self._left.popleft() if self._left else self._slow_portion()
                if portion is not None:
                    self.backups += bool(self._assignments[portion])
                    self.handed_out[worker] += 1
                    self._assignments[portion].append(Assignment(worker, monotonic()))
                    return portion
                self._changed.wait(self._seconds_until_slow())
            return None

    def _slow_portion(self) -> int | None:
        """The one that is out longest, if it is slow and has no second copy yet."""
        slowest = min(self._out_once(), key=lambda portion: self._assignments[portion][0].started, default=None)
        if slowest is None or monotonic() - self._assignments[slowest][0].started < self._slow_seconds():
            return None
        return slowest

    def _out_once(self) -> list[int]:
        return [
            portion
            for portion, assignments in self._assignments.items()
            if len(assignments) == 1 and portion not in self._losses
        ]

    def _slow_seconds(self) -> float:
        return SLOW_FACTOR * median(self._seconds) if self._seconds else float("inf")

    def _seconds_until_slow(self) -> float | None:
        started = min((self._assignments[portion][0].started for portion in self._out_once()), default=None)
        if started is None or not self._seconds:
            return None
        return max(0.0, started + self._slow_seconds() - monotonic()) + MARGIN_SECONDS

    def accept_result(self, worker: int, step: int, portion: int, loss: float) -> bool:
        """Whether this result counts: the first of its portion does, later ones and those of past steps do not."""
        with self._changed:
            if self.step != step or portion in self._losses:
                return False
            self._losses[portion] = loss
            mine = next(assignment for assignment in self._assignments[portion] if assignment.worker == worker)
            self._seconds.append(monotonic() - mine.started)
            self.backups_used += mine is not self._assignments[portion][0]
            return True

    def result_arrived(self) -> None:
        """Counts a result that the servers have been told to receive."""
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()

    def remove_worker(self, failure: BaseException | None = None) -> None:
        """Called when a worker is done, or lost."""
        with self._changed:
            self._present -= 1
            self._failure = self._failure or failure
            self._changed.notify_all()

    def wait_for_all(self) -> bool:
        """True when every portion of the step has arrived, False when all workers are done; raises what befell one."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._present or self._arrived == self._portions)
            if self._failure is not None:
                raise self._failure
            return self._arrived == self._portions

    def close_step(self) -> None:
        """The parameters have moved: the next step is open."""
        with self._changed:
            self.step_losses.append(sum(self._losses[portion] for portion in range(self._portions)))
            self._open()
            self._changed.notify_all()
