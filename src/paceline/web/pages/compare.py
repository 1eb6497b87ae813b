"""Two configurations side by side: which settings differ, their results, and whether chance could explain them."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.analysis.cells import COLUMNS, row_name
from paceline.analysis.comparison import MEASURES, Comparison, compare_values
from paceline.analysis.labels import flatten, setting_title, varying_fields
from paceline.analysis.rows import Row
from paceline.errors import UserError
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.web.drawings import applicable_figures
from paceline.web.results_cache import Filters
from paceline.web.site import Page, site_of


@dataclass(frozen=True)
class Measured:
    """One number of both sides, and the first over the second."""

    name: str
    first: str
    second: str
    ratio: str


def show(request: Request) -> Response:
    """The page: two chosen configurations, or lists to choose them from."""
    site = site_of(request)
    snapshot = site.results.snapshot()
    rows = snapshot.rows(Filters())
    names = _names(rows)
    keys = [key for key in request.query_params.getlist("run") if key]
    if len(keys) > 2:
        raise UserError(f"{len(keys)} configurations were chosen to be put side by side; choose two")
    known = {row.key: row for row in rows}
    if missing := [key for key in keys if key not in known]:
        raise UserError(f"there is no configuration {missing[0]!r} in the results; choose another")
    values: dict[str, object] = {
        "names": names,
        "keys": [*keys, "", ""][:2],
        "pair": None,
        "version_seen": snapshot.version,
    }
    if len(keys) == 2 and keys[0] != keys[1]:
        pair = [known[key] for key in keys]
        values["pair"] = _pair(pair, snapshot.records)
    return site.render(request, "compare.html.j2", values)


def _names(rows: Sequence[Row]) -> dict[str, str]:
    varying = varying_fields(rows)
    return {row.key: f"{row_name(row, varying)} · {setting_title(row.spec)}" for row in rows if row.measured}


def _pair(pair: Sequence[Row], records: Sequence[Record]) -> dict[str, object]:
    sides = [[record for record in records if record.key == row.key and record.ok] for row in pair]
    varying = varying_fields(pair)
    settings = [_settings(row.spec) for row in pair]
    differing = [
        name for name in dict.fromkeys([*settings[0], *settings[1]]) if settings[0].get(name) != settings[1].get(name)
    ]
    return {
        "titles": [row_name(row, varying) for row in pair],
        "rows": pair,
        "differing": [(name, settings[0].get(name, "–"), settings[1].get(name, "–")) for name in differing],
        "alike": [(name, value) for name, value in settings[0].items() if name not in differing],
        "numbers": [_numbers(column.heading, pair, number) for number, column in enumerate(COLUMNS)],
        "verdicts": _verdicts(sides, [row_name(row, varying) for row in pair]),
        "figures": applicable_figures(pair),
        "comparable": setting_title(pair[0].spec) == setting_title(pair[1].spec),
    }


def _settings(spec: RunSpec) -> dict[str, str]:
    fields = {
        "workload": spec.workload,
        "data": str(spec.dataset),
        "copies": spec.dataset_copies,
        "strategy": spec.strategy,
        "workers": spec.workers,
        "samples per step": spec.samples_per_step,
        "scaling": spec.scaling,
        **flatten(spec),
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def _numbers(heading: str, pair: Sequence[Row], number: int) -> Measured:
    column = COLUMNS[number]
    values = [column.value(row) for row in pair]
    texts = ["–" if value is None else column.text(value) for value in values]
    first, second = values
    ratio = f"{first / second:.2f}" if first is not None and second and heading != "runs" else ""
    return Measured(heading, texts[0], texts[1], ratio)


def _verdicts(sides: Sequence[Sequence[Record]], names: Sequence[str]) -> list[Comparison]:
    """A comparison by each measure that both sides have."""
    comparisons = []
    for measure in MEASURES:
        values = [[v for record in side if (v := measure.of(record)) is not None] for side in sides]
        if all(values):
            comparisons.append(compare_values("", measure, (names[0], names[1]), values))
    return comparisons


PAGE = Page("compare", lambda: [Route("/compare", show)], title="Compare", path="/compare", place=4)
