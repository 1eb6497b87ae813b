"""Where a calibration stands: which phase of how many, and how long the rest will take."""

import time
from collections.abc import Callable, Sequence

from paceline.units import format_seconds

Say = Callable[[str], None]
# A phase that is over sooner was measured before, in a calibration that was interrupted.
LEAST_SECONDS = 0.05


class Phases:
    """Counts phases as they begin. `typical_seconds` has those of each; how long they take here scales what is left."""

    def __init__(self, say: Say, typical_seconds: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._typical, self._clock = say, list(typical_seconds), clock
        self._number, self._began = 0, 0.0
        # Of the phases that were measured now.
        self._spent = self._expected = 0.0

    def begin(self, text: str) -> None:
        """Says that the next phase begins."""
        now = self._clock()
        if self._number:
            elapsed = now - self._began
            if elapsed >= LEAST_SECONDS:
                self._spent += elapsed
                self._expected += self._typical[self._number - 1]
        self._number, self._began = self._number + 1, now
        # More phases than foreseen take as long as the last one.
        self._typical += [self._typical[-1] if self._typical else 1.0] * (self._number - len(self._typical))
        self._say(f"{self._prefix}: {text}, about {format_seconds(self._left)} left")

    def note(self, text: str) -> None:
        """Says something about the phase that is on."""
        self._say(f"{self._prefix}: {text}" if self._number else text)

    @property
    def _prefix(self) -> str:
        return f"phase {self._number} of {len(self._typical)}"

    @property
    def _left(self) -> float:
        scale = self._spent / self._expected if self._expected else 1.0
        return scale * sum(self._typical[self._number - 1 :])
