"""Puts the application together: the guard in front, a route for every page, static files, the stream of events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from paceline.catalogue import discover
from paceline.errors import UserError
from paceline.web.events import stream
from paceline.web.guard import Guard
from paceline.web.site import HERE, Page, Site, site_of


def make_app(site: Site) -> Starlette:
    """The application for a results file."""
    site.pages = tuple(discover("paceline.web.pages", "PAGE", Page).values())
    routes: list[BaseRoute] = [route for page in site.pages for route in page.routes()]
    routes += [Route("/events", stream), Route("/favicon.ico", _icon)]
    routes.append(Mount("/static", StaticFiles(directory=HERE / "static")))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        site.closing = True
        await site.jobs.close()

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, token=site.token, any_name=site.any_name)],
        exception_handlers={UserError: _wrong_input, HTTPException: _refused, ClientDisconnect: _gone},
    )
    app.state.site = site
    return app


def _icon(_request: Request) -> Response:
    """The icon by the name that browsers ask for where a page names none, such as a picture."""
    return FileResponse(HERE / "static" / "icon.svg")


async def _wrong_input(request: Request, error: Exception) -> Response:
    return _message(request, "That cannot be done", str(error), 400)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Whoever asked went away before the end of the request; nobody reads this."""
    return Response(status_code=400)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = "There is no such page" if error.status_code == 404 else "That is not allowed"
    text = "The address may be old; start from the navigation." if error.status_code == 404 else error.detail
    return _message(request, title, text, error.status_code)


def _message(request: Request, title: str, text: str, status: int) -> Response:
    return site_of(request).render(request, "message.html.j2", {"title": title, "text": text}, status=status)
