"""A form that starts a study: a built-in one, or one that the fields describe; with the same command for a terminal."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from paceline.data import data_sources
from paceline.strategies import strategies
from paceline.study import Study, built_in_studies
from paceline.systems import local_system
from paceline.units import format_seconds
from paceline.web.choices import known_lines, known_values
from paceline.web.commands import CommandResult, run_command
from paceline.web.form import Fields, Option, command_line, run_arguments
from paceline.web.site import Page, Site, form_fields, site_of
from paceline.workloads import workloads

# What most people set comes first; the remaining options are folded away.
FIRST = ("scale", "workers", "global_batch", "local_batch", "epochs", "steps", "repeats", "knob", "breakdown")
# The study that is selected at first.
DEFAULT_STUDY = "quick"
# Chosen from lists of their own.
LISTED = ("workload", "strategy", "dataset")
# Not in the form: the server has its results file and shows progress itself.
LEFT_OUT = ("db", "dry_run", "as_json", "list_studies", "progress")
# A plan that measures tries a few steps of each kind of run; longer than this, it is not a preview any more.
PLAN_SECONDS = 300.0
# Configurations of a plan that a page lists.
SHOWN = 60


def show(request: Request) -> Response:
    """The form."""
    site = site_of(request)
    fields = {name: request.query_params.getlist(name) for name in request.query_params} or {"study": [DEFAULT_STUDY]}
    options = {option.name: option for option in _form_options(site) if option.name not in LISTED}
    values: dict[str, Any] = {
        "fields": fields,
        "studies": {name: Study.load(name).about for name in built_in_studies()},
        "workloads": {name: workload.about for name, workload in workloads().items()},
        "datasets": sorted(data_sources()),
        "families": _strategies_by_framework(),
        "known_values": known_values,
        "known_lines": known_lines,
        "first": [options[name] for name in FIRST if name in options],
        "more": [option for name, option in options.items() if name not in FIRST],
        "command": command_line(_arguments(site, fields)),
    }
    return site.render(request, "start.html.j2", values)


def _strategies_by_framework() -> dict[str, list[dict[str, str]]]:
    """Name, family, what it does, and why it cannot run here, of the strategies of each framework."""
    by_framework: dict[str, list[dict[str, str]]] = {name: [] for name in ("torch", "tensorflow", "jax")}
    installed = local_system().frameworks
    for strategy in strategies().values():
        missing = [name for name in (strategy.framework, *strategy.needs.packages) if name and name not in installed]
        facts = {"name": strategy.name, "family": strategy.family, "about": strategy.about}
        reason = f"{missing[0]} is not installed" if missing else ""
        by_framework.setdefault(strategy.framework or "no framework", []).append({**facts, "reason": reason})
    return {name: members for name, members in by_framework.items() if members}


def _form_options(site: Site) -> Sequence[Option]:
    """The options that the form may set."""
    return [option for option in site.options if option.name not in LEFT_OUT]


def _arguments(site: Site, fields: Fields) -> list[str]:
    return run_arguments(fields, _form_options(site), site.named_db)


async def start(request: Request) -> Response:
    """Puts the study into the queue and shows the first page."""
    fields = await form_fields(request)
    site = site_of(request)
    filled = {name: [value for value in values if value] for name, values in fields.items()}
    site.jobs.start(_arguments(site, fields), "/start?" + urlencode(filled, doseq=True))
    return RedirectResponse("/", status_code=303)


async def same_command(request: Request) -> Response:
    """The command for a terminal that these fields stand for."""
    fields = await form_fields(request)
    return PlainTextResponse(command_line(_arguments(site_of(request), fields)))


async def plan(request: Request) -> Response:
    """What the study would run: a table without measuring anything, or with the time that a few steps tell."""
    fields = await form_fields(request)
    site = site_of(request)
    if any(job.open for job in site.jobs.all):
        return _no_plan(request, "a study is running, and a plan would disturb its times; it is shown afterwards")
    # Only the newest question matters: the form has changed since the one before.
    if site.planning is not None:
        site.planning.cancel()
    measured = "measure" in fields
    arguments = [*_arguments(site, fields), "--dry-run", *([] if measured else ["--json"])]
    site.planning = asyncio.create_task(run_command(arguments, PLAN_SECONDS))
    try:
        result = await site.planning
    except asyncio.CancelledError:
        return _no_plan(request, "the form has changed since")
    if result.code != 0:
        return _no_plan(request, result.err.strip() or "there is no plan; see the terminal of paceline serve", "warn")
    if measured:
        return PlainTextResponse((result.out + result.err).strip())
    return site.render(request, "plan.html.j2", _plan_values(result))


def _no_plan(request: Request, reason: str, tone: str = "soft") -> Response:
    """Why there is no plan. It is no error of a request: fields are wrong while they are being typed."""
    return site_of(request).render(request, "plan.html.j2", {"reason": reason, "tone": tone})


def _plan_values(result: CommandResult) -> dict[str, Any]:
    planned = json.loads(result.out)
    seconds = planned["seconds"]
    return {
        "planned": planned,
        "shown": planned["configurations"][:SHOWN],
        "hidden": max(0, len(planned["configurations"]) - SHOWN),
        "same_workload": len({each["workload"] + each["data"] for each in planned["configurations"]}) == 1,
        "time": f"about {format_seconds(seconds)}, as stored runs tell" if seconds else "",
    }


async def stop(request: Request) -> Response:
    """Stops a study as Ctrl-C would."""
    fields = await form_fields(request)
    jobs = site_of(request).jobs
    job = jobs.find(request.path_params["number"])
    if job is None:
        raise HTTPException(404)
    jobs.stop(job)
    return Response(status_code=204) if "quiet" in fields else RedirectResponse("/", status_code=303)


def _routes() -> list[Route]:
    return [
        Route("/start", show, methods=["GET"]),
        Route("/start", start, methods=["POST"]),
        Route("/start/command", same_command, methods=["POST"]),
        Route("/start/plan", plan, methods=["POST"]),
        Route("/stop/{number}", stop, methods=["POST"]),
    ]


PAGE = Page("start", _routes, title="Start", path="/start", place=5)
