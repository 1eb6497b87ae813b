"""Two sets of runs side by side: the ratio with its interval, a rank test, an effect size, and a verdict in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.labels import setting_title
from paceline.analysis.selection import Selector
from paceline.analysis.statistics import Interval, bootstrap_ratio, effect_size, rank_test
from paceline.analysis.verdicts.certainty import LEAST_RUNS, SURE_RUNS, Certainty, certainty
from paceline.record import Record
from paceline.units import format_count


@dataclass(frozen=True)
class Measure:
    """A number of a run that two sides are compared by; higher is better for all of them."""

    name: str
    of: Callable[[Record], float | None]


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides by one measure in one setting."""

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
    def certainty(self) -> Certainty:
        """How sure it is that the sides differ."""
        return certainty(self.first_values, self.second_values)

    @property
    def verdict(self) -> str:
        """The result in a sentence, as strong as the runs are many: no winner where chance could explain it."""
        if self.certainty is Certainty.UNKNOWN:
            runs = " and ".join(format_count(len(values), "run") for values in (self.first_values, self.second_values))
            return f"too few runs to tell ({runs}); repeat at least {LEAST_RUNS} times"
        if self.certainty is Certainty.TIE:
            return "no clear difference"
        faster, slower, times = (
            (self.first, self.second, self.ratio) if self.ratio > 1 else (self.second, self.first, 1 / self.ratio)
        )
        text = f"{faster} is {times:.2f} times {slower}"
        if self.certainty is Certainty.SURE:
            return f"{text} (p = {self.p_value:.2g})"
        return f"{text}, likely (p = {self.p_value:.2g}); {SURE_RUNS} runs of each would make it sure"


def _rate(record: Record) -> float | None:
    return record.steady.samples_per_second if record.steady else None


def _rate_by_cpu(record: Record) -> float | None:
    steady = record.steady
    return steady.samples / steady.cpu_seconds if steady and steady.cpu_seconds else None


MEASURES = (Measure("samples/s", _rate), Measure("samples per CPU second", _rate_by_cpu))


def compare(records: Sequence[Record], first: Selector, second: Selector) -> list[Comparison]:
    """Compares both sides by every measure, in each setting and worker count in which both have good runs."""
    sides = [_by_setting(records, selector) for selector in (first, second)]
    comparisons = []
    for title in sides[0]:
        if title in sides[1] and sides[0][title] != sides[1][title]:
            comparisons += compare_runs(title, (str(first), str(second)), [side[title] for side in sides])
    return comparisons


def _by_setting(records: Sequence[Record], selector: Selector) -> dict[str, list[Record]]:
    """The good runs of one side by setting, which includes the worker count unless the selector names one."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        if record.ok and not record.spec.instrumented and selector.matches(record.spec):
            workers = "" if "workers" in selector.fields else f" · {format_count(record.spec.workers, 'worker')}"
            grouped.setdefault(setting_title(record.spec) + workers, []).append(record)
    return grouped


def compare_runs(setting: str, names: tuple[str, str], sides: Sequence[Sequence[Record]]) -> list[Comparison]:
    """Compares the runs of two sides by each measure that both have."""
    comparisons = []
    for measure in MEASURES:
        first, second = (tuple(v for record in side if (v := measure.of(record)) is not None) for side in sides)
        if first and second:
            comparisons.append(Comparison(
                setting, measure.name, *names, first, second, median(first) / median(second),
                bootstrap_ratio(first, second), rank_test(first, second), effect_size(first, second),
            ))  # fmt: skip
    return comparisons
