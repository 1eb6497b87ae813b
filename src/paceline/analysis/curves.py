"""Loss curves of runs that should train alike: how far they differ, and points to draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.convergence import is_synchronous
from paceline.analysis.rows import Row
from paceline.spec import BASELINE

# A picture shows no more than this many points of a line; longer curves are averaged over equal stretches.
MOST_POINTS = 200


@dataclass(frozen=True)
class Agreement:
    """How well the synchronous runs of one setting agree, step by step."""

    reference: str
    compared: int
    steps: int
    # The largest difference of any of them from the reference in any step, relative to the reference.
    largest: float


def curve(losses: Sequence[float | None]) -> list[tuple[float, float]]:
    """(Step, loss), thinned to what a picture can show; steps count from 1."""
    points = [(step, loss) for step, loss in enumerate(losses, start=1) if loss is not None]
    size = -(-len(points) // MOST_POINTS) or 1
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [tuple(sum(values) / len(values) for values in zip(*part, strict=True)) for part in stretches]


def agreement(rows: Sequence[Row]) -> Agreement | None:
    """Compares the losses of synchronous runs; the reference is a one-worker run if there is one.

    Only runs with the same global batch make the same steps; in weak scaling the largest such group is compared. Runs
    whose data came in an order of their own are not.
    """
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        if row.losses and is_synchronous(row.spec) and None not in row.losses and not row.own_order:
            sizes.setdefault(row.spec.samples_per_step, []).append(row)
    alike = max(sizes.values(), key=len, default=[])
    if len(alike) < 2:
        return None
    reference = min(alike, key=lambda row: (row.spec.workers, row.spec.strategy != BASELINE, row.spec.strategy))
    steps = min(len(row.losses) for row in alike)
    largest = max(
        abs(loss - base) / max(abs(base), 1e-12)
        for row in alike
        for loss, base in zip(row.losses[:steps], reference.losses[:steps], strict=True)
        if loss is not None and base is not None
    )
    return Agreement(f"{reference.spec.strategy} x{reference.spec.workers}", len(alike) - 1, steps, largest)
