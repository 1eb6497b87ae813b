"""What a reader must know beside the numbers: findings of single runs gathered, and those that only many runs show."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.labels import groups, series_name, shortened, varying_within
from paceline.analysis.rows import Row
from paceline.record import Finding, Record
from paceline.runs.environment import unlike_fields

WIDE_SPREAD = 0.10
FEW_REPEATS = 3


@dataclass(frozen=True)
class Gathered:
    """A finding and the configurations that it concerns."""

    finding: Finding
    where: tuple[str, ...]
    total: int


def gather(records: Sequence[Record], rows: Sequence[Row]) -> list[Gathered]:
    """Every finding once, with where it holds."""
    measured = [row for row in rows if row.measured]
    names = _names(rows)
    records = [record for record in records if not record.spec.instrumented]
    found = _of_runs([record for record in records if record.ok], names, len(measured))
    found += _few_repeats(measured, names) + _wide_spread(measured, names) + _unlike(records)
    return found


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """What to call each configuration: the series, its workers and, of several settings, what tells this one apart."""
    titled = groups(rows)
    varying = varying_within(titled.values())
    short, _ = shortened(list(titled))
    return {
        row.key: f"{series_name(row, varying)} x{row.spec.workers}" + (f" ({apart})" if len(titled) > 1 else "")
        for apart, own in zip(short, titled.values(), strict=True)
        for row in own
    }


def _of_runs(records: Sequence[Record], names: dict[str, str], total: int) -> list[Gathered]:
    by_code: dict[str, tuple[Finding, dict[str, None]]] = {}
    for record in records:
        for finding in record.findings:
            by_code.setdefault(finding.code, (finding, {}))[1][names[record.key]] = None
    return [Gathered(finding, tuple(where), total) for finding, where in by_code.values()]


def _few_repeats(rows: Sequence[Row], names: dict[str, str]) -> list[Gathered]:
    few = [row for row in rows if row.runs < FEW_REPEATS]
    if not few:
        return []
    fewest = min(row.runs for row in few)
    finding = Finding(
        code="few_repeats",
        text=f"some configurations ran {'once' if fewest == 1 else 'twice'} only: chance cannot be told from effect",
        hint=f"repeat at least {FEW_REPEATS} times (--repeats {FEW_REPEATS}); runs already made are kept",
    )
    return [Gathered(finding, tuple(names[row.key] for row in few), len(rows))]


def _wide_spread(rows: Sequence[Row], names: dict[str, str]) -> list[Gathered]:
    wide = [row for row in rows if row.spread is not None and row.spread > WIDE_SPREAD]
    if not wide:
        return []
    widest = max(row.spread or 0 for row in wide)
    finding = Finding(
        code="wide_spread",
        text=f"repeats of the same run differ by up to {widest:.0%}",
        hint="quieten the machine or repeat more often; differences smaller than this mean nothing",
    )
    return [Gathered(finding, tuple(names[row.key] for row in wide), len(rows))]


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
    return [Gathered(finding, (), len(records))]
