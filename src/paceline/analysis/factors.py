"""One factor at a time: which rows differ in nothing but a factor, the strategy and the worker count."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paceline.analysis.labels import groups, setting
from paceline.analysis.rows import Row
from paceline.contract.context import spec_facts
from paceline.errors import UserError
from paceline.spec import RunSpec


@dataclass(frozen=True)
class Factor:
    """Something that a study varies: the fields it consists of, and how to order and to call its levels."""

    name: str
    fields: tuple[str, ...]
    level: Callable[[Row], float]
    label: Callable[[float], str]


def parameters(row: Row) -> float:
    """Of the model: counted from its layers, or as the run itself found."""
    if row.spec.model is None:
        with suppress(UserError):
            return float(spec_facts(row.spec).parameters)
    return float(row.parameters or 0)


def size(row: Row) -> tuple[float, ...]:
    """How large a setting is: its model, its data, its batch."""
    return parameters(row), row.spec.dataset_copies, row.spec.train_samples or 0, row.spec.samples_per_step


def settings(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that belong in one panel, by title, the largest setting last; what was shrunk is said elsewhere."""
    return _by_size(groups(rows, without={"shrunk"}))


def _by_size(grouped: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return dict(sorted(grouped.items(), key=lambda item: size(item[1][0])))


def short_count(count: float) -> str:
    """`402 k`, `4.1 M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f}"


MODEL = Factor("model", ("workload", "model", "options"), parameters, short_count)
# As it was given: of all workers in strong scaling, of each in weak scaling.
BATCH = Factor(
    "batch",
    ("global_batch", "local_batch"),
    lambda row: float(row.spec.global_batch or row.spec.local_batch or 0),
    "{:,.0f}".format,
)
DATA = Factor("data", ("dataset_copies",), lambda row: float(row.spec.dataset_copies), "{:.0f}x".format)

# For what is drawn of every setting by itself.
NOTHING = Factor("nothing", (), lambda _row: 0.0, str)


def slices(rows: Sequence[Row], factor: Factor) -> dict[str, list[Row]]:
    """Measured rows that differ in the factor, the strategy and the workers only, by what they have in common."""
    found: dict[str, list[Row]] = {}
    titles: dict[str, str] = {}
    for row in rows:
        if row.measured:
            same = str(_rest(row.spec, factor))
            titles.setdefault(same, setting(row.spec, without={factor.name, "shrunk"}))
            found.setdefault(same, []).append(row)
    return _by_size({_unlike(titles[same], same, titles): own for same, own in found.items()})


def telling(rows: Sequence[Row], factor: Factor, levels: int = 2, counts: int = 2) -> list[Row]:
    """Rows of strategies with at least so many levels of the factor and so many worker counts."""
    seen: dict[str, list[Row]] = {}
    for row in rows:
        seen.setdefault(row.spec.strategy, []).append(row)
    enough = {
        name
        for name, own in seen.items()
        if len({factor.level(row) for row in own}) >= levels and len({row.spec.workers for row in own}) >= counts
    }
    return [row for row in rows if row.spec.strategy in enough]


def _rest(spec: RunSpec, factor: Factor) -> dict[str, Any]:
    same = spec.model_dump(mode="json", exclude={"strategy", "workers", "knobs", "shrunk", *factor.fields})
    return {**same, "scaling": spec.scaling}


def _unlike(title: str, same: str, titles: dict[str, str]) -> str:
    """Titles that would be the same although settings differ (another optimizer, say) are numbered."""
    alike = [other for other, known in titles.items() if known == title]
    return title if len(alike) == 1 else f"{title} ({alike.index(same) + 1} of {len(alike)})"
