"""The batch from which on more workers pay: where a measured speed-up rises through one."""

from collections.abc import Sequence
from itertools import pairwise

# As fast as one worker.
EVEN = 1.0


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """The last batch at which the line through (batch, speed-up) points rises through one; None if it never does."""
    last = None
    for (before, low), (after, high) in pairwise(points):
        if low < EVEN <= high:
            last = before + (after - before) * (EVEN - low) / (high - low)
    return last


def pays_from(points: Sequence[tuple[float, float]]) -> str:
    """A phrase that says from which batch on more workers pay; points are (batch, speed-up) at growing batches."""
    if not points:
        return "not known"
    if points[-1][1] < EVEN:
        return "do not pay up to here"
    place = crossing(points)
    return f"pay from about {place:,.0f}" if place is not None else "pay throughout"
