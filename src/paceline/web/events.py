"""Server-sent events with the state of what was started here, and of the results, as they change."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from paceline.web.site import Site

# How often the results file is checked, and the least time between two events.
LOOK_SECONDS = 1.0
REST_SECONDS = 0.4
# A browser has one for each page that is in sight.
MOST_STREAMS = 50


async def stream(request: Request) -> Response:
    """Sends one event at once, then one for every change, until the browser disconnects."""
    site = request.app.state.site
    if site.streams >= MOST_STREAMS:
        return PlainTextResponse(f"{site.streams} pages follow already; close some\n", status_code=503)
    return StreamingResponse(_events(site, request), media_type="text/event-stream")


async def _events(site: "Site", request: Request) -> AsyncIterator[str]:
    sent, version = 0, None
    site.streams += 1
    try:
        yield "retry: 1000\n\n"
        while not site.closing and not await request.is_disconnected():
            revision, results = site.jobs.revision, site.results.version()
            if (revision, results) == (sent, version):
                await site.jobs.changed(LOOK_SECONDS)
                continue
            # At first all that is kept, then what changed since.
            news = [job.snapshot() for job in site.jobs.all if version is None or job.revision > sent]
            values = {"jobs": news, "kept": [job.number for job in site.jobs.all], "results": results}
            sent, version = revision, results
            yield f"data: {json.dumps(values, allow_nan=False)}\n\n"
            await asyncio.sleep(REST_SECONDS)
    finally:
        site.streams -= 1
