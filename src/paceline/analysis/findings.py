"""Findings: those of single runs gathered over configurations, and those that only several runs show together."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from paceline.analysis.frame import flat_lines
from paceline.analysis.labels import group_by_setting, series_name, shorten_titles, varying_within
from paceline.analysis.rows import Row
from paceline.record import Finding, Record
from paceline.runs.meters.environment import unlike_fields
from paceline.systems.nccl import LINK_SPEED, SLICE_TRANSPORT

WIDE_SPREAD = 0.10
FEW_REPEATS = 3


@dataclass(frozen=True)
class GatheredFinding:
    """A finding, the names of the configurations it concerns, and how many of all they are."""

    finding: Finding
    where: tuple[str, ...]
    count: int
    total: int


class RunFindings:
    """Findings of runs that come one by one: their records need not be in memory together."""

    def __init__(self) -> None:
        # By code: the oldest run with the finding, what it says, and the oldest such run of each configuration.
        self._findings: dict[str, tuple[int, Finding]] = {}
        self._keys: dict[str, dict[str, int]] = {}
        # Records of a results file share the value of an environment that they have in common.
        self._environments: dict[int, dict[str, Any]] = {}
        self._links: set[str] = set()
        self._runs = 0

    def add(self, key: str, records: Iterable[Record]) -> None:
        """Takes in records of one configuration, each once."""
        for record in records:
            if not record.spec.instrumented:
                self._runs += 1
                if record.ok:
                    self._add_good(key, record, record.id or self._runs)

    def _add_good(self, key: str, record: Record, number: int) -> None:
        for finding in record.findings:
            if finding.code not in self._findings or number < self._findings[finding.code][0]:
                self._findings[finding.code] = number, finding
            numbers = self._keys.setdefault(finding.code, {})
            numbers[key] = min(number, numbers.get(key, number))
        self._environments[id(record.environment)] = record.environment
        if record.ranks and record.spec.device == "cuda-slice" and record.spec.transport == "auto":
            details = record.ranks[0].details
            if {SLICE_TRANSPORT, LINK_SPEED} & details.keys():
                # Records without the transport are of a Paceline that had sockets alone.
                self._links.add(details.get(SLICE_TRANSPORT, "socket"))

    def include(self, other: Self) -> None:
        """Takes in what was gathered from other configurations."""
        for code, (number, finding) in other._findings.items():
            if code not in self._findings or number < self._findings[code][0]:
                self._findings[code] = number, finding
        for code, numbers in other._keys.items():
            self._keys.setdefault(code, {}).update(numbers)
        self._environments |= {id(environment): environment for environment in other._environments.values()}
        self._links |= other._links
        self._runs += other._runs

    def gather(self, rows: Sequence[Row]) -> list[GatheredFinding]:
        """Every finding once, with the configurations it concerns."""
        measured = [row for row in rows if row.measured]
        findings = self._of_runs() + _few_repeats(measured) + _wide_spread(measured)
        describe, total = _namer(rows), len(measured)
        return [
            *(GatheredFinding(finding, describe(keys), len(keys), total) for finding, keys in findings),
            *(GatheredFinding(finding, (), 0, self._runs) for finding in (*self._unlike(), *self._unlike_links())),
        ]

    def _of_runs(self) -> list[tuple[Finding, list[str]]]:
        codes = sorted(self._findings, key=lambda code: self._findings[code][0])
        return [(self._findings[code][1], sorted(self._keys[code], key=self._keys[code].__getitem__)) for code in codes]

    def _unlike(self) -> list[Finding]:
        environments = list(self._environments.values())
        unlike = unlike_fields(environments) if environments else []
        if not unlike:
            return []
        text = f"the runs were made in different environments: {', '.join(unlike)} differ"
        hint = "compare only runs of one environment: repeat the older ones with --fresh"
        return [Finding(code="unlike_environments", text=text, hint=hint)]

    def _unlike_links(self) -> list[Finding]:
        """A finding where slices used NCCL's fastest link in some runs and sockets in others: they do not compare."""
        if len(self._links) < 2:
            return []
        text = "in some runs the slices of the GPU talked through its memory, in others over loopback sockets"
        hint = "compare only runs of one link: repeat the older ones with --fresh, or ask for --transport socket"
        return [Finding(code="unlike_links", text=text, hint=hint)]


def gather_findings(records: Iterable[Record], rows: Sequence[Row]) -> list[GatheredFinding]:
    """Every finding once, with the configurations it concerns."""
    findings = RunFindings()
    for record in records:
        findings.add(record.key, [record])
    return findings.gather(rows)


def json_values(rows: Sequence[Row], findings: Sequence[GatheredFinding]) -> dict[str, list[object]]:
    """Rows, the memory of each process and findings as values that JSON can hold."""
    return {name: [*values] for name, values in json_lists(rows, findings).items()}


def json_lists(rows: Sequence[Row], findings: Sequence[GatheredFinding]) -> dict[str, Iterable[object]]:
    """The same, each value when it is asked for: those of thousands of rows need not be in memory together."""
    return {
        "rows": flat_lines(rows),
        "memory": ({"key": row.key, **asdict(rank)} for row in rows for rank in row.memory),
        "changes": (
            {"key": row.key, **asdict(change)} for row in rows if row.membership for change in row.membership.changes
        ),
        "findings": finding_values(findings),
    }


def finding_values(findings: Sequence[GatheredFinding]) -> list[dict[str, object]]:
    """The findings as values that JSON can hold."""
    return [{**item.finding.model_dump(), "where": list(item.where)} for item in findings]


def _namer(rows: Sequence[Row]) -> Callable[[Collection[str]], tuple[str, ...]]:
    """A function that names a configuration by key: strategy and workers, and the setting where it needs one."""
    titled = group_by_setting(rows, without={"shrunk"})
    varying = varying_within(titled.values())
    short, _ = shorten_titles(list(titled))
    names = {row.key: f"{series_name(row, varying)} x{row.spec.workers}" for row in rows}
    title_of = {row.key: title for title, members in zip(short, titled.values(), strict=True) for row in members}

    def describe(keys: Collection[str]) -> tuple[str, ...]:
        titles_of: dict[str, list[str]] = {}
        for key in keys:
            titles_of.setdefault(names[key], []).append(title_of[key])
        if len(titled) == 1:
            return tuple(titles_of)
        settings = {
            name: titles[0] if len(titles) == 1 else f"{len(titles)} settings" for name, titles in titles_of.items()
        }
        return tuple(f"{name} ({setting})" for name, setting in settings.items())

    return describe


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
