"""From where on something pays: where a measured speed-up crosses one."""

from collections.abc import Sequence
from itertools import pairwise

# As fast as one worker.
EVEN = 1.0


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """The last place where the line through the points rises through one; None if it never does."""
    found = None
    for (before, low), (after, high) in pairwise(points):
        if low < EVEN <= high:
            found = before + (after - before) * (EVEN - low) / (high - low)
    return found


def pays_from(points: Sequence[tuple[float, float]]) -> str:
    """In words, of speed-ups at growing batches."""
    if not points:
        return "not known"
    if points[-1][1] < EVEN:
        return "do not pay up to here"
    place = crossing(points)
    return f"pay from about {place:,.0f}" if place is not None else "pay throughout"
