"""The first page: studies that run now, and every study in the results file with its answer."""

from collections import Counter
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.analysis.headline import headline
from paceline.analysis.labels import group_by_setting
from paceline.web.results_cache import Filters, Snapshot
from paceline.web.site import Page, filters_of, site_of


@dataclass(frozen=True)
class Summary:
    """One study of the results file, summarised."""

    name: str
    query: str
    configurations: int
    runs: int
    not_well: int
    skipped: int
    last: str
    answers: list[tuple[str, str]]


def _summary(name: str, snapshot: Snapshot) -> Summary:
    filters = Filters({"study": (name,)})
    records = [record for record in snapshot.select(filters) if not record.spec.instrumented]
    counts = Counter(str(record.status) for record in records)
    skipped = counts["skipped"]
    answers = [
        (sentence, title)
        for title, rows in group_by_setting(snapshot.rows(filters)).items()
        if (sentence := headline(rows))
    ]
    return Summary(
        name=name,
        query=filters.query,
        configurations=len({record.key for record in records}),
        runs=counts["ok"],
        not_well=len(records) - counts["ok"] - skipped,
        skipped=skipped,
        last=max((record.started_at for record in records), default="")[:16].replace("T", " "),
        answers=answers,
    )


def _summaries(snapshot: Snapshot) -> list[Summary]:
    summaries = [_summary(name, snapshot) for name in snapshot.members]
    return sorted(summaries, key=lambda summary: summary.last, reverse=True)


def show(request: Request) -> Response:
    """The page."""
    site = site_of(request)
    snapshot = site.results.snapshot()
    jobs = [job.snapshot() for job in reversed(site.jobs.all)]
    values = {
        "studies": _summaries(snapshot),
        "jobs": jobs,
        "filters": filters_of(request),
        "version_seen": snapshot.version,
    }
    return site.render(request, "overview.html.j2", values)


PAGE = Page("overview", lambda: [Route("/", show)], title="Studies", path="/", place=1)
