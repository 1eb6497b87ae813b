"""Which of several configurations is the fastest, which are as fast, and how sure that is.

Everything that names a winner asks here: tables, reports, comparisons, pages and recommendations.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.analysis.verdicts.certainty import CLOSE, LEAST_RUNS, SURE_RUNS, Certainty, certainty
from paceline.units import format_count, format_percent

NAMES_LISTED = 4
_BY_STRENGTH = tuple(Certainty)


@dataclass(frozen=True)
class Contender:
    """A configuration, and a number of each of its runs, of which more is better."""

    name: str
    workers: int
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The number that stands for all runs."""
        return median(self.values)


@dataclass(frozen=True)
class Verdict:
    """The best of several, those that chance could make as good, the best of the rest, and how sure it is."""

    best: Contender
    equals: tuple[Contender, ...]
    next: Contender | None
    certainty: Certainty
    # All that were judged, the fastest first.
    contenders: tuple[Contender, ...]

    @property
    def first(self) -> tuple[Contender, ...]:
        """The best with its equals, the fastest first."""
        return (self.best, *self.equals)

    @property
    def choice(self) -> Contender:
        """The one with the fewest workers among the best and its equals."""
        return min(self.first, key=lambda contender: (contender.workers, -contender.median))

    @property
    def names(self) -> list[str]:
        """The names of the best and its equals; of many, how many more there are."""
        names = [contender.name for contender in self.first]
        # `torch-ddp x2`, and then only `x4`.
        before = ["", *(name.rpartition(" ")[0] for name in names)]
        short = [name.removeprefix(f"{same} ") if same else name for same, name in zip(before, names, strict=False)]
        hidden = len(names) - NAMES_LISTED
        return short if hidden <= 0 else [*short[:NAMES_LISTED], f"{hidden} more"]

    @property
    def fewest_runs(self) -> int:
        """Runs of the configuration with the fewest."""
        return min(len(contender.values) for contender in self.contenders)

    @property
    def word(self) -> str:
        """The certainty in a word: what chance could make as good is a tie if it is close, and open if it is not."""
        if self.certainty is Certainty.UNKNOWN:
            return "not sure"
        far = self.best.median > (1 + CLOSE) * min(contender.median for contender in self.first)
        return "open" if self.certainty is Certainty.TIE and far else str(self.certainty)

    @property
    def how_sure(self) -> str:
        """How far ahead the best is, and whether chance could explain that, in words."""
        runs = format_count(self.fewest_runs, "run")
        if self.next is None and not self.equals:
            return f"{runs}, and nothing to compare with"
        if self.certainty is Certainty.UNKNOWN:
            few = [contender.name for contender in self.contenders if len(contender.values) < LEAST_RUNS]
            whose = "each" if len(few) == len(self.contenders) else " and ".join(few[:2])
            return f"not sure, {runs} of {whose} cannot tell chance from effect"
        if self.certainty is Certainty.TIE or self.next is None:
            how = "differ too much to tell" if self.word == "open" else "do not tell"
            return f"{runs} of each {how} them apart"
        ahead = f"{format_percent(self.ahead)} ahead of {self.next.name}"
        if self.certainty is Certainty.SURE:
            return f"sure, {ahead} in {runs}"
        return f"likely, {ahead} in each of {runs} ({SURE_RUNS} would make it sure)"

    @property
    def ahead(self) -> float:
        """By which share the best is ahead of the next that is no equal; 0 where there is no such."""
        return self.best.median / (self.next or self.best).median - 1


def judge(contenders: Sequence[Contender]) -> Verdict:
    """The verdict over at least one contender. The best is as sure as the weakest of its comparisons."""
    order = sorted(contenders, key=lambda contender: -contender.median)
    best, others = order[0], order[1:]
    by_other = {contender: certainty(best.values, contender.values) for contender in others}
    equals = tuple(contender for contender in others if by_other[contender] is Certainty.TIE)
    weakest = min(by_other.values(), key=_BY_STRENGTH.index, default=Certainty.UNKNOWN)
    return Verdict(
        best,
        equals,
        next((contender for contender in others if by_other[contender] is not Certainty.TIE), None),
        weakest,
        tuple(order),
    )


def judge_rows(rows: Sequence[Row], unnamed: Container[str] = ()) -> tuple[Verdict, Row]:
    """The verdict over the measured rows of a setting, and the row of the best; names leave out `unnamed` fields."""
    varying = [name for name in varying_fields(rows) if name not in unnamed]
    contenders = _contenders(rows, varying)
    verdict = judge(contenders)
    return verdict, rows[contenders.index(verdict.best)]


def first_keys(rows: Sequence[Row]) -> set[str]:
    """The keys of the measured rows of a setting that are the best, or that chance could make as good."""
    contenders = _contenders(rows, varying_fields(rows))
    firsts = {id(contender) for contender in judge(contenders).first}
    return {row.key for row, contender in zip(rows, contenders, strict=True) if id(contender) in firsts}


def _contenders(rows: Sequence[Row], varying: Sequence[str]) -> list[Contender]:
    return [
        Contender(f"{series_name(row, varying)} x{row.spec.workers}", row.spec.workers, row.samples_per_second_of_runs)
        for row in rows
    ]
