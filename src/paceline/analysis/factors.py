"""Groups of rows in which only one factor, the strategy and the worker count differ."""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter

from paceline.analysis.configurations.differences import differs, marks
from paceline.analysis.labels import group_by_setting, setting_title
from paceline.analysis.rows import Row
from paceline.contract.context import spec_facts
from paceline.errors import UserError
from paceline.link import NetworkLink
from paceline.spec import SPREADING_FIELDS, RunSpec


@dataclass(frozen=True)
class Factor:
    """Something that a study varies: its fields, the number that orders its levels, and the label of a level."""

    name: str
    fields: tuple[str, ...]
    level: Callable[[Row], float]
    label: Callable[[float], str]


def parameters(row: Row) -> float:
    """Parameters of the model: counted from its layers, or as the run itself counted them."""
    if row.spec.model is None:
        with suppress(UserError):
            return float(spec_facts(row.spec).parameters)
    return float(row.parameters or 0)


def setting_size(row: Row) -> tuple[float, ...]:
    """Sorts settings by model, data and batch."""
    return parameters(row), row.spec.dataset_copies, row.spec.train_samples or 0, row.spec.samples_per_step


def settings_by_size(rows: Sequence[Row], without: Container[str] = frozenset({"shrunk"})) -> dict[str, list[Row]]:
    """Rows by the title of their setting, the largest setting last; titles leave out what was shrunk."""
    return _by_size(group_by_setting(rows, without=without))


def settings_where(
    rows: Sequence[Row], keep: Callable[[Row], object], enough: Callable[[list[Row]], object] = bool
) -> dict[str, list[Row]]:
    """The rows that `keep` accepts by setting, of settings in which there are `enough` of them."""
    accepted = {title: [row for row in members if keep(row)] for title, members in settings_by_size(rows).items()}
    return {title: members for title, members in accepted.items() if enough(members)}


def _by_size(grouped: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return dict(sorted(grouped.items(), key=lambda item: setting_size(item[1][0])))


def _message_seconds(link: NetworkLink | None) -> float:
    return link.delay_seconds + _MESSAGE_BYTES / link.bytes_per_second if link else 0.0


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

# Ordered by what a message of a megabyte takes, the slowest first; loopback is faster than any link.
_MESSAGE_BYTES = 1e6
LINK = Factor("link", ("link",), lambda row: -_message_seconds(row.spec.link), str)

# For figures that draw each setting by itself.
NO_FACTOR = Factor("nothing", (), lambda _row: 0.0, str)


def groups_varying(rows: Sequence[Row], factor: Factor) -> dict[str, list[Row]]:
    """Measured rows in groups that differ only in the factor, the strategy and the workers, by title."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return {}
    names = [name for name in RunSpec.model_fields if name not in {*SPREADING_FIELDS, "shrunk", *factor.fields}]
    columns = zip(*(attrgetter("scaling", *names)(row.spec) for row in measured), strict=True)
    unequal = [values for values in columns if differs(values)]
    grouped: dict[Hashable, list[Row]] = {}
    for mark, row in zip(marks(unequal) if unequal else repeat(()), measured, strict=False):
        grouped.setdefault(mark, []).append(row)
    titles = [setting_title(members[0].spec, without={factor.name, "shrunk"}) for members in grouped.values()]
    counts, numbers = Counter(titles), Counter[str]()
    numbered: dict[str, list[Row]] = {}
    for title, members in zip(titles, grouped.values(), strict=True):
        numbers[title] += 1
        numbered[_numbered_title(title, numbers[title], counts[title])] = members
    return _by_size(numbered)


def with_enough_levels(rows: Sequence[Row], factor: Factor, levels: int = 2, counts: int = 2) -> list[Row]:
    """The rows of strategies that have at least this many levels of the factor and this many worker counts."""
    by_strategy: dict[str, list[Row]] = {}
    for row in rows:
        by_strategy.setdefault(row.spec.strategy, []).append(row)
    enough = {
        name
        for name, members in by_strategy.items()
        if len({factor.level(row) for row in members}) >= levels
        and len({row.spec.workers for row in members}) >= counts
    }
    return [row for row in rows if row.spec.strategy in enough]


def _numbered_title(title: str, number: int, count: int) -> str:
    """The title, with a number where several settings share it (they differ in, say, the optimizer)."""
    return title if count == 1 else f"{title} ({number} of {count})"
