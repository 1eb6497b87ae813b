"""Server-sent events with the state of every study started here, and of the results, as they change."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from paceline.web.site import Site

# How often the results file is checked, and the least time between two events.
LOOK_SECONDS = 1.0
REST_SECONDS = 0.2


async def stream(request: Request) -> StreamingResponse:
    """Sends one event at once, then one for every change, until the browser disconnects."""
    return StreamingResponse(_events(request.app.state.site, request), media_type="text/event-stream")


async def _events(site: "Site", request: Request) -> AsyncIterator[str]:
    sent: tuple[int, str] | None = None
    yield "retry: 1000\n\n"
    while not site.closing and not await request.is_disconnected():
        state = (site.jobs.revision, site.results.version())
        if state != sent:
            sent = state
            values = {"jobs": [job.snapshot() for job in site.jobs.all], "results": state[1]}
            yield f"data: {json.dumps(values)}\n\n"
            await asyncio.sleep(REST_SECONDS)
        else:
            await site.jobs.changed(LOOK_SECONDS)
