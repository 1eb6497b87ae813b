"""The order of configurations in tables."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from paceline.analysis.configurations.differences import differs
from paceline.link import link_rank
from paceline.spec import RunSpec
from paceline.strategies import strategy_of_stored

Configuration = TypeVar("Configuration")
_ORDERING = tuple(name for name in RunSpec.model_fields if name not in ("workers", "link"))
_ordering_values = attrgetter(*_ORDERING)


def in_order(
    configurations: Iterable[Configuration], spec_of: Callable[[Configuration], RunSpec]
) -> list[Configuration]:
    """By workload, data, batch, strategy, then all other fields, then workers and link."""
    alike: dict[tuple[Any, ...], list[Configuration]] = {}
    for configuration in configurations:
        spec = spec_of(configuration)
        batch = spec.global_batch or spec.local_batch or 0
        place = (spec.workload, str(spec.dataset), spec.dataset_copies, spec.scaling, batch,
                 comes_after_single(spec.strategy), spec.strategy)  # fmt: skip
        alike.setdefault(place, []).append(configuration)
    return [configuration for place in sorted(alike) for configuration in _by_other_fields(alike[place], spec_of)]


def _by_other_fields(
    configurations: Sequence[Configuration], spec_of: Callable[[Configuration], RunSpec]
) -> list[Configuration]:
    """In the order of the text of those fields in which they differ: that of the others is the same in all."""
    columns = zip(*(_ordering_values(spec_of(configuration)) for configuration in configurations), strict=True)
    unequal = {name for name, values in zip(_ORDERING, columns, strict=True) if differs(values)}

    def place(configuration: Configuration) -> tuple[Any, ...]:
        spec = spec_of(configuration)
        values = spec.model_dump(include=unequal) if unequal else {}
        # Every value has what follows it in the text of all fields: 1 comes before 10.
        return "".join(f"{value!r}, " for value in values.values()), spec.workers, link_rank(spec.link)

    return sorted(configurations, key=place)


def comes_after_single(name: str) -> bool:
    """Whether a strategy is none of those with one worker, which come first."""
    chosen = strategy_of_stored(name)
    return chosen is None or chosen.family != "single"
