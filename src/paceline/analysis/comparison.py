"""Two sets of runs side by side: the ratio with its interval, a rank test, an effect size, and a verdict in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.labels import setting
from paceline.analysis.selection import Selector
from paceline.analysis.statistics import Interval, bootstrap_ratio, effect_size, rank_test
from paceline.record import Record
from paceline.units import format_count

# Cliff's delta from which an effect is called small, medium and large (Romano et al., 2006).
EFFECTS = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"), (float("inf"), "large"))


@dataclass(frozen=True)
class Measure:
    """A number of a run that two sides are compared by; higher is better for all of them."""

    name: str
    of: Callable[[Record], float | None]


@dataclass(frozen=True)
class Comparison:
    """What the runs of two sides say about one measure in one setting."""

    setting: str
    measure: str
    first: str
    second: str
    first_values: tuple[float, ...]
    second_values: tuple[float, ...]
    # The first side's median over the second's.
    ratio: float
    interval: Interval | None
    p_value: float | None
    effect: float | None

    @property
    def verdict(self) -> str:
        """In a sentence; never a winner where chance could explain the difference."""
        if self.interval is None:
            fewest = min(len(self.first_values), len(self.second_values))
            return f"{fewest} run of a side tells nothing of the next; repeat at least 3 times"
        if self.interval.spans(1.0):
            return "no clear difference"
        faster, slower, times = (
            (self.first, self.second, self.ratio) if self.ratio > 1 else (self.second, self.first, 1 / self.ratio)
        )
        return f"{faster} is {times:.2f} times {slower} ({self.effect_word} effect)"

    @property
    def effect_word(self) -> str:
        """The size of the effect in a word."""
        return next(word for limit, word in EFFECTS if abs(self.effect or 0.0) < limit)


def _rate(record: Record) -> float | None:
    return record.steady.samples_per_second if record.steady else None


def _rate_by_cpu(record: Record) -> float | None:
    steady = record.steady
    return steady.samples / steady.cpu_seconds if steady and steady.cpu_seconds else None


MEASURES = (Measure("samples/s", _rate), Measure("samples per CPU second", _rate_by_cpu))


def compare(records: Sequence[Record], first: Selector, second: Selector) -> list[Comparison]:
    """Every setting and worker count in which both sides have good runs, by every measure."""
    sides = [_by_place(records, selector) for selector in (first, second)]
    found = []
    for place in sides[0]:
        if place not in sides[1] or sides[0][place] == sides[1][place]:
            continue
        for measure in MEASURES:
            values = [
                tuple(value for record in side[place] if (value := measure.of(record)) is not None) for side in sides
            ]
            if all(values):
                found.append(compared(place, measure, (str(first), str(second)), values))
    return found


def _by_place(records: Sequence[Record], selector: Selector) -> dict[str, list[Record]]:
    """Good runs of one side, by setting; worker counts are part of it unless the selector names one."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        if record.ok and not record.spec.instrumented and selector.takes(record.spec):
            workers = "" if "workers" in selector.fields else f" · {format_count(record.spec.workers, 'worker')}"
            grouped.setdefault(setting(record.spec) + workers, []).append(record)
    return grouped


def compared(place: str, measure: Measure, names: tuple[str, str], values: Sequence[Sequence[float]]) -> Comparison:
    """What the values of two sides say."""
    above, below = (tuple(side) for side in values)
    return Comparison(
        setting=place,
        measure=measure.name,
        first=names[0],
        second=names[1],
        first_values=above,
        second_values=below,
        ratio=median(above) / median(below),
        interval=bootstrap_ratio(above, below),
        p_value=rank_test(above, below),
        effect=effect_size(above, below),
    )
