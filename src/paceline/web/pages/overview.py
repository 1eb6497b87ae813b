"""The first page: studies that run now, and every study in the results file with its answer."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.analysis.answer import answer, headline, verdict_lines
from paceline.analysis.labels import group_by_setting
from paceline.analysis.rows import Row
from paceline.record import Record
from paceline.web.results_cache import Filters, Snapshot
from paceline.web.site import Page, filters_of, site_of

# Settings of a study that are listed here; its results have all.
MOST_LINES = 8


def _summary(name: str, snapshot: Snapshot) -> dict[str, Any]:
    """One study of the results file, summarised anew where something of it changed."""
    filters = Filters({"study": (name,)})
    records, rows = snapshot.select(filters), snapshot.rows(filters)
    return snapshot.part(("study", name), [*records, *rows], lambda: _summarise(name, filters, records, rows))


def _summarise(name: str, filters: Filters, all_records: Sequence[Record], rows: Sequence[Row]) -> dict[str, Any]:
    records = [record for record in all_records if not record.spec.instrumented]
    counts = Counter(str(record.status) for record in records)
    settings, lines = list(group_by_setting([row for row in rows if row.measured])), verdict_lines(rows)
    said = answer(rows)
    return {
        "name": name,
        "query": filters.query,
        "configurations": len({record.key for record in records}),
        "runs": counts["ok"],
        "not_well": len(records) - counts["ok"] - counts["skipped"],
        "skipped": counts["skipped"],
        "last": max((record.started_at for record in records), default="")[:16].replace("T", " "),
        # Of several settings a line for each; of one, the sentence of its table.
        "answer": (said.sentences[0] if lines else headline(rows)) if said else None,
        "setting": "" if lines or not settings else settings[0],
        "lines": lines[:MOST_LINES],
        "hidden": max(0, len(lines) - MOST_LINES),
    }


def show(request: Request) -> Response:
    """The page."""
    site = site_of(request)
    snapshot = site.results.snapshot()
    jobs = [job.snapshot() for job in reversed(site.jobs.all)]
    studies = [_summary(name, snapshot) for name in snapshot.members]
    studies.sort(key=lambda study: study["last"], reverse=True)
    values = {"studies": studies, "jobs": jobs, "filters": filters_of(request), "version_seen": snapshot.version}
    return site.render(request, "overview.html.j2", values)


PAGE = Page("overview", lambda: [Route("/", show)], title="Studies", path="/", place=1)
