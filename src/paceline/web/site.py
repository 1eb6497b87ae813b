"""What every page uses: the results, the running studies, the templates; and what a page is."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from paceline.errors import UserError
from paceline.store import DEFAULT_PATH
from paceline.user_input.printable import finalize, printable
from paceline.web.form import Option
from paceline.web.jobs import Jobs
from paceline.web.results_cache import Filters, ResultsCache

if TYPE_CHECKING:
    import asyncio

    import jinja2
    from starlette.routing import BaseRoute

    from paceline.web.commands import CommandResult

HERE = Path(__file__).parent
MOST_FORM_BYTES = 1 << 16
MOST_FIELDS = 1000


@dataclass(frozen=True)
class Page:
    """One page of the application. A page with a title is in the navigation, at its place."""

    name: str
    routes: Callable[[], Sequence["BaseRoute"]]
    title: str = ""
    path: str = ""
    place: int = 0


@dataclass
class Site:
    """One running application."""

    db: Path
    # The options of `paceline run` and of `paceline recommend`, for their forms.
    options: tuple[Option, ...] = ()
    advice_options: tuple[Option, ...] = ()
    # What every request must show, and whether names other than this machine's own are answered.
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    any_name: bool = False
    pages: tuple[Page, ...] = ()
    # Set when the server is to end, so that open streams end too.
    closing: bool = False
    # The plan that the form of a new study asks for now.
    planning: "asyncio.Task[CommandResult] | None" = None
    # Pages that follow what happens.
    streams: int = 0
    # Known only to pages that this application wrote.
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @cached_property
    def results(self) -> ResultsCache:
        """The results file."""
        return ResultsCache(self.db)

    @cached_property
    def jobs(self) -> Jobs:
        """The studies that were started here."""
        return Jobs()

    @property
    def named_db(self) -> Path | None:
        """The results file as a command must name it; None where it is the default."""
        return None if self.db == DEFAULT_PATH else self.db

    @cached_property
    def templates(self) -> "jinja2.Environment":
        """Templates that escape all values."""
        import jinja2

        return jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True,
            lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=finalize,
        )  # fmt: skip

    def render(self, request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """A page as HTML."""
        shared = {
            "navigation": sorted((page for page in self.pages if page.title), key=lambda page: page.place),
            "here": request.scope["path"],
            "db": str(self.db),
            "version": version("paceline"),
            "secret": self.secret,
            "query": filters_of(request).query,
        }
        return HTMLResponse(self.templates.get_template(template).render({**shared, **values}), status_code=status)


def site_of(request: Request) -> Site:
    """The application that a request is for."""
    site = request.app.state.site
    assert isinstance(site, Site)
    return site


def filters_of(request: Request) -> Filters:
    """The filters in the address."""
    return Filters.parse(request.query_params.multi_items())


async def form_fields(request: Request) -> dict[str, list[str]]:
    """The fields of a form, if a page of this application sent it."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM_BYTES:
            raise HTTPException(413, "the form is too long")
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HTTPException(413, f"the form has more than {MOST_FIELDS} fields; fill in fewer") from None
    secret = fields.pop("secret", [""])[0]
    if not secrets.compare_digest(secret.encode(), site_of(request).secret.encode()):
        raise HTTPException(403, "this form is not of this application as it runs now; load its page again")
    for name, values in fields.items():
        if any(not_typed(value) for value in (name, *values)):
            raise UserError(f"field {printable(name)!r} has a control character, which no option takes; type it anew")
    return fields


def not_typed(text: str) -> bool:
    """Whether a text has characters that nobody types into a form: controls other than line ends and tabs."""
    return printable(text, keep="\r\n\t") != text
