"""Every figure that the filtered results can be drawn as: as a picture, interactive, and to download."""

import json

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from paceline.analysis.rows import Row
from paceline.figures import Figure, figures
from paceline.figures.variants import DARK
from paceline.web.drawings import Look, applicable_figures, rendered, vega_script
from paceline.web.guard import OPEN_PATH
from paceline.web.results_cache import filtered_values
from paceline.web.site import Page, filters_of, site_of

MEDIA = {"svg": "image/svg+xml", "png": "image/png", "json": "application/json"}
# A figure to explore is alone in its frame: it may compute, which Vega needs, and reach nothing at all.
ALONE = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; frame-ancestors 'self'"
)


def show(request: Request) -> Response:
    """The page."""
    site, filters = site_of(request), filters_of(request)
    snapshot = site.results.snapshot()
    rows = snapshot.rows(filters)
    applicable = snapshot.part(("figures", filters.query), rows, lambda: applicable_figures(rows))
    values = {**filtered_values(snapshot, filters), "figures": applicable}
    return site.render(request, "figures.html.j2", values)


def image(request: Request) -> Response:
    """One figure as a file."""
    figure, rows, results_key = _requested(request)
    kind = request.path_params["kind"]
    if kind not in MEDIA:
        raise HTTPException(404)
    headers = {"Content-Disposition": f'inline; filename="{figure.name}.{kind}"'}
    return Response(rendered(figure, rows, kind, results_key, _look(request)), media_type=MEDIA[kind], headers=headers)


def explore(request: Request) -> Response:
    """One interactive figure, in its own frame."""
    figure, rows, _ = _requested(request)
    look = Look(on_page=True, narrow="narrow" in request.query_params)
    # Nothing in it can end the element that it stands in.
    values = json.dumps(look.chart(figure, rows)).replace("<", "\\u003c")
    page = site_of(request).render(
        request,
        "explore.html.j2",
        {"values": values, "title": figure.question, "script": OPEN_PATH, "dark_colours": DARK},
    )
    page.headers["Content-Security-Policy"] = ALONE
    return HTMLResponse(page.body, headers=dict(page.headers))


def vega(_request: Request) -> Response:
    """The drawing script; the frame has no origin and no cookie, so that it must be open to all."""
    headers = {"Cross-Origin-Resource-Policy": "cross-origin", "Cache-Control": "max-age=86400"}
    return Response(vega_script(), media_type="text/javascript", headers=headers)


def _look(request: Request) -> Look:
    """How the address wants the figure: `on` a page, `narrow`, in the dark."""
    wanted = request.query_params
    return Look(on_page="on" in wanted, narrow="narrow" in wanted, dark=wanted.get("on") == "dark")


def _requested(request: Request) -> tuple[Figure, list[Row], tuple[str, ...]]:
    site, filters = site_of(request), filters_of(request)
    figure = figures().get(request.path_params["name"])
    snapshot = site.results.snapshot()
    keys = request.query_params.getlist("run")
    rows = [row for row in snapshot.rows(filters) if not keys or row.key in keys]
    if figure is None or not figure.applies(rows):
        raise HTTPException(404)
    return figure, rows, (snapshot.version, filters.query, *keys)


def _routes() -> list[Route]:
    return [
        Route("/figures", show),
        Route(OPEN_PATH, vega),
        Route("/figures/{name}/explore", explore),
        Route("/figures/{name}.{kind}", image),
    ]


PAGE = Page("figures", _routes, title="Figures", path="/figures", place=3)
