"""A form that starts a study: a built-in one, or what the fields describe; with the same command for the terminal."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from paceline.data import data_sources
from paceline.strategies import strategies
from paceline.study import Study, built_in_studies
from paceline.systems import local_system
from paceline.web.asking import ask
from paceline.web.form import Fields, Option, command, run_words
from paceline.web.site import Page, Site, no_content, posted, site_of
from paceline.workloads import workloads

# What most people set comes first; the remaining options are folded away.
FIRST = ("scale", "workers", "global_batch", "local_batch", "epochs", "steps", "repeats", "knob", "breakdown")
# Who just wants to see something presses the button.
OFFERED_FIRST = "quick"
# Chosen from lists of their own.
LISTED = ("workload", "strategy", "dataset")
# Of no use here: the server has its results file and shows progress itself.
LEFT_OUT = ("db", "dry_run", "list_studies", "progress")
# A plan measures a few steps of each kind of run at most; longer than this, it is not a preview any more.
PLAN_SECONDS = 300.0


def show(request: Request) -> Response:
    """The form."""
    site = site_of(request)
    given = {name: request.query_params.getlist(name) for name in request.query_params} or {"study": [OFFERED_FIRST]}
    options = {option.name: option for option in _offered(site) if option.name not in LISTED}
    values: dict[str, Any] = {
        "given": given,
        "studies": {name: Study.load(name).about for name in built_in_studies()},
        "workloads": {name: found.about for name, found in workloads().items()},
        "datasets": sorted(data_sources()),
        "families": _strategies_by_framework(),
        "first": [options[name] for name in FIRST if name in options],
        "more": [option for name, option in options.items() if name not in FIRST],
        "command": command(_words(site, given)),
    }
    return site.render(request, "start.html.j2", values)


def _strategies_by_framework() -> dict[str, list[tuple[str, str, str]]]:
    """Name, what it does, and why it cannot run here, by framework."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    installed = local_system().frameworks
    for one in strategies().values():
        missing = [name for name in (one.framework, *one.needs.packages) if name and name not in installed]
        reason = f"{missing[0]} is not installed" if missing else ""
        found.setdefault(one.framework or "no framework", []).append((one.name, one.about, reason))
    return found


def _offered(site: Site) -> Sequence[Option]:
    """The options that the form may set."""
    return [option for option in site.options if option.name not in LEFT_OUT]


def _words(site: Site, fields: Fields) -> list[str]:
    return run_words(fields, _offered(site), site.named_db)


async def start(request: Request) -> Response:
    """Puts the study into the line and shows the first page."""
    fields = await posted(request)
    site = site_of(request)
    filled = {name: [value for value in values if value] for name, values in fields.items()}
    site.jobs.start(_words(site, fields), "/start?" + urlencode(filled, doseq=True))
    return RedirectResponse("/", status_code=303)


async def same_command(request: Request) -> Response:
    """What would be typed in the terminal for these fields."""
    fields = await posted(request)
    return PlainTextResponse(command(_words(site_of(request), fields)))


async def plan(request: Request) -> Response:
    """What the study would run, as `--dry-run` prints it."""
    fields = await posted(request)
    site = site_of(request)
    if any(job.open for job in site.jobs.all):
        words = (
            "a study is running, and a plan may measure a few steps, which would disturb it; ask again when it is done"
        )
        return PlainTextResponse(words, status_code=409)
    said = await ask([*_words(site, fields), "--dry-run"], PLAN_SECONDS)
    return PlainTextResponse(said.out + said.err, status_code=200 if said.code == 0 else 422)


async def stop(request: Request) -> Response:
    """Stops a study as Ctrl-C would."""
    fields = await posted(request)
    site_of(request).jobs.stop(int(request.path_params["number"]))
    return no_content() if "quiet" in fields else RedirectResponse("/", status_code=303)


def _routes() -> list[Route]:
    return [
        Route("/start", show, methods=["GET"]),
        Route("/start", start, methods=["POST"]),
        Route("/start/command", same_command, methods=["POST"]),
        Route("/start/plan", plan, methods=["POST"]),
        Route("/stop/{number:int}", stop, methods=["POST"]),
    ]


PAGE = Page("start", _routes, title="Start", path="/start", place=5)
