"""The few statistics that tables need, on plain lists."""

from collections.abc import Sequence
from statistics import median


def middle(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return median(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Largest minus smallest over the median; None with fewer than two values."""
    if len(values) < 2:
        return None
    return (max(values) - min(values)) / median(values)
