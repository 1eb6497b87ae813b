"""Sentences that say from how many workers, which batch and which model size on a strategy paid in measured runs."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from paceline.analysis.factors import BATCH, LINK, MODEL, Factor, parameters
from paceline.analysis.rows import Row
from paceline.units import format_count

# A gain below this is called none.
LEAST_GAIN = 1.02
# As fast as one worker.
EVEN = 1.0


def _workers(row: Row) -> str:
    return format_count(row.spec.workers, "worker")


def _batch(row: Row) -> str:
    return f"a global batch of {row.spec.samples_per_step:,}"


def _model(row: Row) -> str:
    return f"{row.spec.workload} ({parameters(row):,.0f} parameters)" if row.spec.model is None else row.spec.workload


def _link(row: Row) -> str:
    return f"link {row.spec.link.text}" if row.spec.link else "loopback"


WORKERS = Factor("workers", ("workers",), lambda row: float(row.spec.workers), "{:.0f}".format)
# The factors that may vary, and a phrase for a level of each.
FACTORS: tuple[tuple[Factor, Callable[[Row], str]], ...] = (
    (WORKERS, _workers), (BATCH, _batch), (MODEL, _model), (LINK, _link),
)  # fmt: skip


def thresholds(rows: Sequence[Row]) -> list[str]:
    """A sentence for every series of runs in which one factor alone was varied and several workers were used."""
    sentences = []
    for factor, words in FACTORS:
        series: dict[str, list[Row]] = {}
        for row in rows:
            if row.speedup is not None and row.spec.workers > 1:
                series.setdefault(row.spec.model_dump_json(exclude=set(factor.fields)), []).append(row)
        ordered = [sorted(members, key=factor.level) for members in series.values()]
        sentences += [
            f"{_name(factor, members[0], rows)} {_verdict(members, words)} the speed of one worker."
            for members in ordered
            if len({factor.level(row) for row in members}) > 1
        ]
    return sentences


def _verdict(members: Sequence[Row], words: Callable[[Row], str]) -> str:
    """Says at which levels it pays; the rows are in the order of their levels."""
    pays = [(row.speedup or 0.0) >= LEAST_GAIN for row in members]
    measured = ", ".join(f"{words(row)} {row.speedup:.2f}x" for row in members)
    if not any(pays):
        verdict = "pays at none of what was measured"
    elif all(pays):
        verdict = "pays throughout"
    elif pays == sorted(pays):
        verdict = f"pays from {words(members[pays.index(True)])} on"
    else:
        paying, others = (
            [words(row) for row, paid in zip(members, pays, strict=True) if paid is kind] for kind in (True, False)
        )
        verdict = f"pays with {' and '.join(paying)}, not with {' or '.join(others)}"
    return f"{verdict}: {measured}"


def _name(factor: Factor, row: Row, rows: Sequence[Row]) -> str:
    """The strategy, and in brackets the fields that tell this series from others."""
    spec, details = row.spec, []
    if factor is not WORKERS:
        details.append(_workers(row))
    if factor is not MODEL and len({other.spec.workload for other in rows}) > 1:
        details.append(spec.workload)
    if factor is not LINK and len({other.spec.link for other in rows}) > 1:
        details.append(_link(row))
    if factor is not BATCH and len({other.spec.samples_per_step for other in rows}) > 1:
        details.append(f"batch {spec.global_batch or spec.local_batch:,}")
    return f"{spec.strategy} ({', '.join(details)})" if details else spec.strategy


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
