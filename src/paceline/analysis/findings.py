"""What a reader must know beside the numbers: findings of single runs gathered, and those that only many runs show."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from paceline.analysis.labels import groups, series_name, shortened, varying_within
from paceline.analysis.rows import Row
from paceline.record import Finding, Record
from paceline.runs.meters.environment import unlike_fields

WIDE_SPREAD = 0.10
FEW_REPEATS = 3


@dataclass(frozen=True)
class Gathered:
    """A finding, how many of all configurations it concerns, and which: those of several settings once."""

    finding: Finding
    where: tuple[str, ...]
    count: int
    total: int


def gather(records: Sequence[Record], rows: Sequence[Row]) -> list[Gathered]:
    """Every finding once, with where it holds."""
    measured = [row for row in rows if row.measured]
    records = [record for record in records if not record.spec.instrumented]
    found = _of_runs([record for record in records if record.ok])
    found += _few_repeats(measured) + _wide_spread(measured)
    place, total = _places(rows), len(measured)
    return [Gathered(finding, place(keys), len(keys), total) for finding, keys in found] + _unlike(records)


def _places(rows: Sequence[Row]) -> Callable[[Collection[str]], tuple[str, ...]]:
    """How to say which configurations are meant: the series with its workers, in one setting or in so many."""
    titled = groups(rows, without={"shrunk"})
    varying = varying_within(titled.values())
    short, _ = shortened(list(titled))
    names = {row.key: f"{series_name(row, varying)} x{row.spec.workers}" for row in rows}
    titles = {row.key: title for title, own in zip(short, titled.values(), strict=True) for row in own}

    def said(keys: Collection[str]) -> tuple[str, ...]:
        found: dict[str, list[str]] = {}
        for key in keys:
            found.setdefault(names[key], []).append(titles[key])
        if len(titled) == 1:
            return tuple(found)
        return tuple(f"{name} ({own[0] if len(own) == 1 else f'{len(own)} settings'})" for name, own in found.items())

    return said


def _of_runs(records: Sequence[Record]) -> list[tuple[Finding, list[str]]]:
    by_code: dict[str, tuple[Finding, dict[str, None]]] = {}
    for record in records:
        for finding in record.findings:
            by_code.setdefault(finding.code, (finding, {}))[1][record.key] = None
    return [(finding, list(keys)) for finding, keys in by_code.values()]


def _few_repeats(rows: Sequence[Row]) -> list[tuple[Finding, list[str]]]:
    few = [row for row in rows if row.runs < FEW_REPEATS]
    if not few:
        return []
    fewest = min(row.runs for row in few)
    finding = Finding(
        code="few_repeats",
        text=f"some configurations ran {'once' if fewest == 1 else 'twice'} only: chance cannot be told from effect",
        hint=f"repeat at least {FEW_REPEATS} times (--repeats {FEW_REPEATS}); runs already made are kept",
    )
    return [(finding, [row.key for row in few])]


def _wide_spread(rows: Sequence[Row]) -> list[tuple[Finding, list[str]]]:
    wide = [row for row in rows if row.spread is not None and row.spread > WIDE_SPREAD]
    if not wide:
        return []
    widest = max(row.spread or 0 for row in wide)
    finding = Finding(
        code="wide_spread",
        text=f"repeats of the same run differ by up to {widest:.0%}",
        hint="quieten the machine or repeat more often; differences smaller than this mean nothing",
    )
    return [(finding, [row.key for row in wide])]


def _unlike(records: Sequence[Record]) -> list[Gathered]:
    environments = [record.environment for record in records if record.ok]
    unlike = unlike_fields(environments) if environments else []
    if not unlike:
        return []
    finding = Finding(
        code="unlike_environments",
        text=f"the runs were made in different surroundings: {', '.join(unlike)} differ",
        hint="compare only runs of one environment: repeat the older ones with --fresh",
    )
    return [Gathered(finding, (), 0, len(records))]
