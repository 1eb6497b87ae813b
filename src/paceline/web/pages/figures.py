"""Every figure that the chosen results can answer: as a picture at once, to explore on demand, and to download."""

import json

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from paceline.analysis.rows import Row
from paceline.figures import Figure, figures
from paceline.web.drawings import applying, picture, specification, vega_script
from paceline.web.guard import OPEN_PATH
from paceline.web.shelf import FILTERS
from paceline.web.site import Page, choice_of, site_of

MEDIA = {"svg": "image/svg+xml", "png": "image/png", "json": "application/json"}
# A figure to explore is alone in its frame: it may compute, which Vega needs, and reach nothing at all.
ALONE = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; frame-ancestors 'self'"
)


def show(request: Request) -> Response:
    """The page."""
    site, choice = site_of(request), choice_of(request)
    content = site.shelf.content()
    rows = content.rows(choice)
    values = {
        "filters": FILTERS,
        "offered": content.offered(),
        "choice": choice,
        "figures": applying(rows),
        "shown": len(rows),
        "total": content.configurations,
        "version_seen": content.version,
    }
    return site.render(request, "figures.html.j2", values)


def image(request: Request) -> Response:
    """One figure as a file."""
    figure, rows, seen = _asked(request)
    kind = request.path_params["kind"]
    if kind not in MEDIA:
        raise HTTPException(404)
    headers = {"Content-Disposition": f'inline; filename="{figure.name}.{kind}"'}
    return Response(picture(figure, rows, kind, seen), media_type=MEDIA[kind], headers=headers)


def explore(request: Request) -> Response:
    """One figure to look into with the mouse, in a frame of its own."""
    figure, rows, _ = _asked(request)
    # Nothing in it can end the element that it stands in.
    values = json.dumps(specification(figure, rows)).replace("<", "\\u003c")
    page = site_of(request).render(
        request, "explore.html.j2", {"values": values, "title": figure.question, "script": OPEN_PATH}
    )
    page.headers["Content-Security-Policy"] = ALONE
    return HTMLResponse(page.body, headers=dict(page.headers))


def vega(_request: Request) -> Response:
    """The script for it; the frame is of no origin and has no cookie, so that it must be open to all."""
    headers = {"Cross-Origin-Resource-Policy": "cross-origin", "Cache-Control": "max-age=86400"}
    return Response(vega_script(), media_type="text/javascript", headers=headers)


def _asked(request: Request) -> tuple[Figure, list[Row], tuple[str, ...]]:
    site, choice = site_of(request), choice_of(request)
    figure = figures().get(request.path_params["name"])
    content = site.shelf.content()
    keys = request.query_params.getlist("run")
    rows = [row for row in content.rows(choice) if not keys or row.key in keys]
    if figure is None or not figure.applies(rows):
        raise HTTPException(404)
    return figure, rows, (content.version, choice.query, *keys)


def _routes() -> list[Route]:
    return [
        Route("/figures", show),
        Route(OPEN_PATH, vega),
        Route("/figures/{name}/explore", explore),
        Route("/figures/{name}.{kind}", image),
    ]


PAGE = Page("figures", _routes, title="Figures", path="/figures", place=3)
