"""How far the critical batch of a search for a target and the noise scale of gradients agree, where both are known."""

from collections.abc import Sequence
from statistics import median

from paceline.analysis.batches.regimes import BatchSearch, batch_searches
from paceline.analysis.rows import Row

# What a run that measured the noise shares with a search that it is compared with.
ALIKE = ("workload", "model", "options", "dataset")


def searches_with_noise(rows: Sequence[Row]) -> list[BatchSearch]:
    """Searches whose regimes are known, of models and data whose noise was measured in other runs."""
    return [search for search in batch_searches(rows) if search.regimes is not None and _scales(search, rows)]


def compare_with_noise(search: BatchSearch, rows: Sequence[Row]) -> str | None:
    """Both numbers side by side in a sentence; None where one of them is not known."""
    scales = _scales(search, rows)
    if search.regimes is None or not scales:
        return None
    critical, middle = search.regimes.critical_batch, median(scales)
    times = middle / critical.value
    apart = f"{times:.1f} times the critical batch" if times >= 1 else f"the critical batch is {1 / times:.1f} times it"
    is_within = (critical.low or 0.0) <= middle <= (critical.high or float("inf"))
    span = f"{min(scales):,.0f} to {max(scales):,.0f} samples in single epochs" if len(scales) > 1 else "of one epoch"
    return (
        f"The noise scale of its gradients was {middle:,.0f} samples ({span}): {apart}, "
        f"{'within' if is_within else 'outside of'} its interval."
    )


def _scales(search: BatchSearch, rows: Sequence[Row]) -> list[float]:
    of_search = [getattr(search.rows[0].spec, name) for name in ALIKE]
    return [
        noise.scale
        for row in rows
        if [getattr(row.spec, name) for name in ALIKE] == of_search
        for _, noise in row.noise
        if noise.scale is not None
    ]
