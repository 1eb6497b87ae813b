"""One configuration: its settings, every repeat with its epochs and findings, and the logs of failed runs."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.analysis.labels import flatten, setting_title
from paceline.units import format_rate, format_seconds
from paceline.web.drawings import applicable_figures
from paceline.web.readable import readable
from paceline.web.results_cache import Filters
from paceline.web.site import Page, site_of


def show(request: Request) -> Response:
    """The page."""
    site = site_of(request)
    snapshot = site.results.snapshot()
    key = request.path_params["key"]
    records = snapshot.records_of(key)
    if not records:
        raise HTTPException(404)
    spec = records[0].spec
    rows = [row for row in snapshot.rows(Filters()) if row.key == key]
    values = {
        "key": key,
        "title": f"{spec.strategy} x{spec.workers}",
        "setting": setting_title(spec),
        "records": records,
        "said": snapshot.said_of(key),
        "known_tags": snapshot.filter_values["tag"],
        "settings": readable(flatten(spec)),
        "environment": readable(records[-1].environment),
        "figures": applicable_figures(rows),
        "rate": format_rate,
        "seconds": format_seconds,
        "version_seen": snapshot.version,
    }
    return site.render(request, "configuration.html.j2", values)


PAGE = Page("configuration", lambda: [Route("/configurations/{key}", show)])
