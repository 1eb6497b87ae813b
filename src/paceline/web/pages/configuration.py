"""One configuration: what was asked, every repeat with its epochs, findings, and the log of what did not end well."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.analysis.labels import flatten, setting_title
from paceline.units import format_rate, format_seconds
from paceline.web.drawings import applying
from paceline.web.shelf import Choice
from paceline.web.site import Page, site_of


def show(request: Request) -> Response:
    """The page."""
    site = site_of(request)
    content = site.shelf.content()
    key = request.path_params["key"]
    records = [record for record in content.records if record.key == key]
    if not records:
        raise HTTPException(404)
    spec = records[0].spec
    rows = [row for row in content.rows(Choice()) if row.key == key]
    values = {
        "key": key,
        "title": f"{spec.strategy} x{spec.workers}",
        "setting": setting_title(spec),
        "records": records,
        "settings": [(name, str(value)) for name, value in flatten(spec).items() if value is not None],
        "environment": [(name, str(value)) for name, value in records[-1].environment.items() if value],
        "figures": applying(rows),
        "rate": format_rate,
        "seconds": format_seconds,
        "version_seen": content.version,
    }
    return site.render(request, "configuration.html.j2", values)


PAGE = Page("configuration", lambda: [Route("/configurations/{key}", show)])
