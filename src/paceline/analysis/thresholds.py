"""From how many workers, what batch and what size of model on a strategy paid, by what was measured, in sentences."""

from collections.abc import Callable, Sequence

from paceline.analysis.factors import BATCH, MODEL, Factor, parameters
from paceline.analysis.rows import Row
from paceline.units import format_count

# A gain below this is called none.
LEAST_GAIN = 1.02


def _workers(row: Row) -> str:
    return format_count(row.spec.workers, "worker")


def _batch(row: Row) -> str:
    return f"a global batch of {row.spec.samples_per_step:,}"


def _model(row: Row) -> str:
    return f"{row.spec.workload} ({parameters(row):,.0f} parameters)" if row.spec.model is None else row.spec.workload


WORKERS = Factor("workers", ("workers",), lambda row: float(row.spec.workers), "{:.0f}".format)
# What may be varied, and a level of it in words.
FACTORS: tuple[tuple[Factor, Callable[[Row], str]], ...] = ((WORKERS, _workers), (BATCH, _batch), (MODEL, _model))


def thresholds(rows: Sequence[Row]) -> list[str]:
    """A sentence for every series of runs in which one factor alone was varied and several workers were used."""
    said = []
    for factor, words in FACTORS:
        series: dict[str, list[Row]] = {}
        for row in rows:
            if row.speedup is not None and row.spec.workers > 1:
                series.setdefault(row.spec.model_dump_json(exclude=set(factor.fields)), []).append(row)
        ordered = [sorted(own, key=factor.level) for own in series.values()]
        said += [
            f"{_name(factor, own[0], rows)} {_verdict(own, words)} the speed of one worker."
            for own in ordered
            if len({factor.level(row) for row in own}) > 1
        ]
    return said


def _verdict(own: Sequence[Row], words: Callable[[Row], str]) -> str:
    """Of rows in the order of their levels."""
    pays = [(row.speedup or 0.0) >= LEAST_GAIN for row in own]
    measured = ", ".join(f"{words(row)} {row.speedup:.2f}x" for row in own)
    if not any(pays):
        verdict = "pays at none of what was measured"
    elif all(pays):
        verdict = "pays throughout"
    elif pays == sorted(pays):
        verdict = f"pays from {words(own[pays.index(True)])} on"
    else:
        paying, others = (
            [words(row) for row, one in zip(own, pays, strict=True) if one is kind] for kind in (True, False)
        )
        verdict = f"pays with {' and '.join(paying)}, not with {' or '.join(others)}"
    return f"{verdict}: {measured}"


def _name(factor: Factor, row: Row, rows: Sequence[Row]) -> str:
    """The strategy, with what else tells this series from others."""
    spec, told = row.spec, []
    if factor is not WORKERS:
        told.append(_workers(row))
    if factor is not MODEL and len({other.spec.workload for other in rows}) > 1:
        told.append(spec.workload)
    if factor is not BATCH and len({other.spec.samples_per_step for other in rows}) > 1:
        told.append(f"batch {spec.global_batch or spec.local_batch:,}")
    return f"{spec.strategy} ({', '.join(told)})" if told else spec.strategy
