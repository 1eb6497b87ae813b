"""Results as tables, filtered and grouped; some can be ticked, to be compared or tagged."""

import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from paceline.analysis.answer import headline
from paceline.analysis.cells import row_name
from paceline.analysis.findings import gather_findings
from paceline.analysis.labels import group_by_setting, series_name, varying_fields
from paceline.analysis.quality import used_columns
from paceline.analysis.rows import Row
from paceline.api import Results
from paceline.export import exporters
from paceline.web.results_cache import Snapshot, filtered_values
from paceline.web.site import Page, filters_of, site_of

MEDIA = {"csv": "text/csv; charset=utf-8", "json": "application/json", "parquet": "application/vnd.apache.parquet"}


NO_TAG = "no tag"
# What results can be grouped by beside their setting, and the groups that a row is in.
GROUPS: dict[str, Callable[[Row, Snapshot], Iterable[str]]] = {
    "tag": lambda row, snapshot: snapshot.said_of(row.key).tags or [NO_TAG],
    "strategy": lambda row, _: [row.spec.strategy],
    "workload": lambda row, _: [row.spec.workload],
    "workers": lambda row, _: [f"{row.spec.workers} worker{'s' if row.spec.workers > 1 else ''}"],
    "study": lambda row, snapshot: [name for name, keys in snapshot.members.items() if row.key in keys],
}


def sections(snapshot: Snapshot, rows: Sequence[Row], group: str) -> list[dict[str, Any]]:
    """Tables of one setting each, under the title of their group; a row with two tags is in two groups."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        for title in GROUPS[group](row, snapshot) if group in GROUPS else [""]:
            grouped.setdefault(title, []).append(row)
    return [
        {"title": title, "tables": [table_of(name, part, snapshot) for name, part in group_by_setting(members).items()]}
        for title, members in sorted(grouped.items(), key=lambda item: _place(item[0]))
    ]


def _place(title: str) -> tuple[bool, list[tuple[int, str]]]:
    """Titles by the alphabet and their numbers by size; what has no tag comes last."""
    # Of numbers without leading zeros the longer is the larger; they may have thousands of digits.
    words = [(len(word.lstrip("0")) if word.isdecimal() else 0, word) for word in re.split(r"(\d+)", title)]
    return title == NO_TAG, words


def table_of(title: str, rows: Sequence[Row], snapshot: Snapshot) -> dict[str, Any]:
    """The configurations of one setting: measured rows as lines, the others with key, name, status and reason."""
    varying = varying_fields(rows)
    measured = [row for row in rows if row.measured]
    used = used_columns(measured)
    lines = [
        {"key": row.key, "name": series_name(row, varying), "workers": row.spec.workers,
         "oversubscribed": row.oversubscribed, "cells": [column.cell(row) for column in used],
         "said": snapshot.said_of(row.key)}
        for row in measured
    ]  # fmt: skip
    unmeasured = [
        (row.key, row_name(row, varying), str(row.status).replace("_", " "), row.reason or "no reason given")
        for row in rows
        if not row.measured
    ]
    headings = [column.heading for column in used]
    return {
        "title": title, "answer": headline(rows), "headings": headings, "lines": lines, "unmeasured": unmeasured,
    }  # fmt: skip


def show(request: Request) -> Response:
    """The page."""
    site, filters = site_of(request), filters_of(request)
    snapshot, group = site.results.snapshot(), request.query_params.get("group", "")
    records, rows = snapshot.select(filters), snapshot.rows(filters)
    values = {
        **filtered_values(snapshot, filters),
        "sections": snapshot.part(
            ("sections", filters.query, group),
            [snapshot.annotations, snapshot.members, *rows],
            lambda: sections(snapshot, rows, group),
        ),
        "groups": list(GROUPS),
        "group": group,
        "findings": snapshot.part(
            ("findings", filters.query), [*records, *rows], lambda: gather_findings(records, rows)
        ),
        "downloads": sorted(MEDIA),
    }
    return site.render(request, "results.html.j2", values)


def download(request: Request) -> Response:
    """The filtered results as a file."""
    kind = request.path_params["kind"]
    if kind not in MEDIA:
        raise HTTPException(404)
    records = site_of(request).results.snapshot().select(filters_of(request))
    with tempfile.TemporaryDirectory(prefix="paceline-web-") as folder:
        path = Path(folder) / f"paceline.{kind}"
        exporters()[kind].write(records, str(path), "configurations")
        body = path.read_bytes()
    headers = {"Content-Disposition": f'attachment; filename="paceline.{kind}"'}
    return Response(body, media_type=MEDIA[kind], headers=headers)


def report(request: Request) -> Response:
    """The report page of the filtered results, to download."""
    records = site_of(request).results.snapshot().select(filters_of(request))
    with tempfile.TemporaryDirectory(prefix="paceline-web-") as folder:
        text = Results(tuple(records)).report(Path(folder) / "report.html").read_text(encoding="utf-8")
    headers = {"Content-Disposition": 'attachment; filename="paceline-report.html"'}
    return HTMLResponse(text, headers=headers)


def _routes() -> list[Route]:
    downloads = [Route("/results/paceline.{kind}", download), Route("/results/report", report)]
    return [Route("/results", show), *downloads]


PAGE = Page("results", _routes, title="Results", path="/results", place=2)
