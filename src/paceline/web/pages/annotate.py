"""Tags and notes: written here, shown where configurations are."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.errors import UserError
from paceline.web.annotations import add_tag, remove_tag, set_note
from paceline.web.form import Fields
from paceline.web.site import Page, form_fields, site_of


async def tag(request: Request) -> Response:
    """Gives configurations a tag, or takes one off them."""
    fields, site = await form_fields(request), site_of(request)
    keys = _known_keys(request, fields)
    change = remove_tag if _value(fields, "remove") else add_tag
    await run_in_threadpool(change, site.db, keys, _value(fields, "tag"))
    return _back(fields, keys)


async def note(request: Request) -> Response:
    """Puts a note on a configuration."""
    fields, site = await form_fields(request), site_of(request)
    keys = _known_keys(request, fields)
    await run_in_threadpool(set_note, site.db, keys[0], _value(fields, "note"))
    return _back(fields, keys)


def _value(fields: Fields, name: str) -> str:
    return next(iter(fields.get(name, ())), "")


def _known_keys(request: Request, fields: Fields) -> list[str]:
    """The configurations that are meant; each must be in the results."""
    known = {record.key for record in site_of(request).results.snapshot().records}
    keys = list(fields.get("run", ()))
    if not keys or not known.issuperset(keys):
        raise UserError("this names no configuration of the results; load the page again and tick one")
    return keys


def _back(fields: Fields, keys: list[str]) -> Response:
    if "quiet" in fields:
        return Response(status_code=204)
    return RedirectResponse(f"/configurations/{keys[0]}", status_code=303)


PAGE = Page("annotate", lambda: [Route("/tags", tag, methods=["POST"]), Route("/notes", note, methods=["POST"])])
