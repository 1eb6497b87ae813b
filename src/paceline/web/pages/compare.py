"""Two configurations side by side: which settings differ, their results, and whether chance could explain them."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.analysis.cells import Column, row_name
from paceline.analysis.comparison import compare_runs
from paceline.analysis.labels import flatten, setting_title, varying_fields
from paceline.analysis.quality import all_columns
from paceline.analysis.rows import Row
from paceline.errors import UserError
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.web.drawings import applicable_figures
from paceline.web.readable import readable
from paceline.web.results_cache import Filters
from paceline.web.site import Page, site_of


def show(request: Request) -> Response:
    """The page: two chosen configurations, or lists to choose them from."""
    site = site_of(request)
    snapshot = site.results.snapshot()
    rows = snapshot.rows(Filters())
    varying = varying_fields(rows)
    names = {row.key: f"{row_name(row, varying)} · {setting_title(row.spec)}" for row in rows if row.measured}
    keys = [key for key in request.query_params.getlist("run") if key]
    if len(keys) > 2:
        raise UserError(f"{len(keys)} configurations were chosen to be put side by side; choose two")
    by_key = {row.key: row for row in rows}
    if missing := [key for key in keys if key not in by_key]:
        raise UserError(f"there is no configuration {missing[0]!r} in the results; choose another")
    two = len(keys) == 2 and keys[0] != keys[1]
    pair = _pair([by_key[key] for key in keys], [snapshot.records_of(key) for key in keys]) if two else None
    values = {"names": names, "keys": [*keys, "", ""][:2], "pair": pair, "version_seen": snapshot.version}
    return site.render(request, "compare.html.j2", values)


def _pair(pair: Sequence[Row], records: Sequence[Sequence[Record]]) -> dict[str, object]:
    sides = [[record for record in members if record.ok] for members in records]
    varying = varying_fields(pair)
    first, second = (row_name(row, varying) for row in pair)
    settings = [_settings(row.spec) for row in pair]
    differing = [
        name for name in dict.fromkeys([*settings[0], *settings[1]]) if settings[0].get(name) != settings[1].get(name)
    ]
    return {
        "titles": [first, second],
        "rows": pair,
        "differing": [(name, settings[0].get(name, "–"), settings[1].get(name, "–")) for name in differing],
        "alike": [(name, value) for name, value in settings[0].items() if name not in differing],
        "numbers": [
            _numbers(column, pair) for column in all_columns(pair) if any(column.value(row) is not None for row in pair)
        ],
        "verdicts": compare_runs("", (first, second), sides),
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
    return dict(readable(fields))


def _numbers(column: Column, pair: Sequence[Row]) -> dict[str, str]:
    """One number of both sides, and the first over the second."""
    values = [column.value(row) for row in pair]
    texts = ["–" if value is None else column.text(value) for value in values]
    first, second = values
    ratio = f"{first / second:.2f}" if first is not None and second and column.heading != "runs" else ""
    return {"name": column.heading, "first": texts[0], "second": texts[1], "ratio": ratio}


PAGE = Page("compare", lambda: [Route("/compare", show)], title="Compare", path="/compare", place=4)
