"""How stale the gradients of an asynchronous run were, as its record keeps it."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

# Larger staleness is counted together, which keeps records small.
MOST_STALENESS_APART = 32


class Staleness:
    """How many updates each push was behind: the server's count when it came less the count when its worker fetched."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, updates: int) -> None:
        """Counts an update that was this many updates behind."""
        self._counts[updates] += 1

    def summary(self) -> dict[str, Any]:
        """Mean, maximum and how often each value came; the last entry of the histogram takes all larger values."""
        total = self._counts.total()
        histogram = [0] * (min(max(self._counts, default=0), MOST_STALENESS_APART) + 1)
        for updates, count in self._counts.items():
            histogram[min(updates, MOST_STALENESS_APART)] += count
        mean = sum(updates * count for updates, count in self._counts.items()) / total if total else 0.0
        return {"updates": total, "mean": mean, "max": max(self._counts, default=0), "histogram": histogram}

    @classmethod
    def joined(cls, parts: Iterable["Staleness"]) -> "Staleness":
        """The staleness of several workers together."""
        whole = cls()
        for part in parts:
            whole._counts += part._counts
        return whole
