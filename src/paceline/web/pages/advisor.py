"""The advisor: what to use for a model, a system and an objective, as `paceline recommend` answers; also measured."""

import json
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from paceline.errors import UserError
from paceline.recommend.objectives import OBJECTIVES
from paceline.spec import STRATEGY_FIELDS
from paceline.systems.files import shipped_systems
from paceline.units import format_bytes, format_percent, format_rate
from paceline.web.choices import known_lines, known_values
from paceline.web.commands import CommandResult, run_command
from paceline.web.form import Fields, command_line, option_arguments
from paceline.web.site import Page, Site, form_fields, site_of
from paceline.workloads import workloads

FIRST = ("workers", "global_batch", "network", "price")
# Chosen from lists, or of no use here: what is measured is started as a study.
LISTED = ("workload", "objective", "system")
LEFT_OUT = ("db", "as_json", "measure", "quick", "fresh", "emit", "progress")
# How many of the best are measured, of which people choose.
MEASURED_COUNTS = (2, 3, 5)
ANSWER_SECONDS = 120.0
SHOWN = 12
# In place of how far a candidate is behind.
BEST, TIES = "the best", "ties"


def show(request: Request) -> Response:
    """The form, and below it the answer of a question that measured, where the address names one."""
    fields = {name: request.query_params.getlist(name) for name in request.query_params if name != "job"}
    number = request.query_params.get("job")
    if number is None:
        return _page(request, fields, None, [])
    job = site_of(request).jobs.find(number)
    if job is None or not job.output:
        raise UserError("that answer is not kept any more; ask again: what was measured is stored and need not be anew")
    fields = parse_qs(urlsplit(job.form).query)
    return _page(request, fields, CommandResult(0, job.output, "\n".join(job.messages)), list(job.arguments))


async def answer(request: Request) -> Response:
    """The form with its answer below."""
    fields = await form_fields(request)
    site = site_of(request)
    arguments = _arguments(site, fields)
    # This imports the user's model file, so that only pages of this application may ask for it.
    result = await run_command([*arguments, "--json"], ANSWER_SECONDS)
    return _page(request, fields, result, arguments)


async def measure(request: Request) -> Response:
    """Puts the question into the queue as one that runs the best here, and shows where it can be watched."""
    fields = await form_fields(request)
    site = site_of(request)
    count = next((value for value in fields.get("measure", ()) if value.isdecimal()), str(MEASURED_COUNTS[0]))
    filled = {name: [value for value in values if value] for name, values in fields.items()}
    arguments = [*_arguments(site, fields), f"--measure={count}"]
    site.jobs.start(arguments, "/advisor?" + urlencode(filled, doseq=True), answer_at="/advisor?job={}")
    return RedirectResponse("/", status_code=303)


def _arguments(site: Site, fields: Fields) -> list[str]:
    options = [option for option in site.advice_options if option.name not in LEFT_OUT]
    return ["recommend", *option_arguments(fields, options, site.named_db)]


def _page(request: Request, fields: Fields, result: CommandResult | None, arguments: list[str]) -> Response:
    site = site_of(request)
    options = {o.name: o for o in site.advice_options if o.name not in (*LISTED, *LEFT_OUT)}
    values: dict[str, Any] = {
        "fields": fields,
        "workloads": {name: workload.about for name, workload in workloads().items()},
        "objectives": {name: objective.about for name, objective in OBJECTIVES.items()},
        "systems": shipped_systems(),
        "known_values": known_values,
        "known_lines": known_lines,
        "measured_counts": MEASURED_COUNTS,
        "first": [options[name] for name in FIRST if name in options],
        "more": [option for name, option in options.items() if name not in FIRST],
        "command": command_line(arguments) if arguments else "",
        "script": command_line([*arguments, "--emit=script"]) if arguments else "",
        "trouble": result.err if result is not None and result.code != 0 else "",
        "warning": result.err if result is not None and result.code == 0 else "",
        "advice": _advice(json.loads(result.out), fields) if result is not None and result.code == 0 else None,
    }
    return site.render(request, "advisor.html.j2", values)


def _advice(values: dict[str, Any], fields: Fields) -> dict[str, Any]:
    lines = [_line(candidate, fields, values["objective"]) for candidate in values["ranked"][:SHOWN]]
    if sum(candidate["tied"] for candidate in values["ranked"]) == 1:
        lines = [{**line, "behind": BEST if line["behind"] == TIES else line["behind"]} for line in lines]
    return {
        "reasons": values["reasons"],
        "ranked": lines,
        "hidden": max(0, len(values["ranked"]) - SHOWN),
        "excluded": values["excluded"],
        "system": values["system"],
        "measured": any(candidate["measured"] is not None for candidate in values["ranked"][:SHOWN]),
    }


def _line(candidate: dict[str, Any], fields: Fields, objective: str) -> dict[str, str]:
    """One candidate as text, and the form that would measure it."""
    rate, settings = candidate["samples_per_second"], {"layout": candidate["layout"], **candidate["knobs"]}
    marks = "".join(f" {name}={value}" for name, value in settings.items() if value is not None)
    # Some settings are fields of a run, which the form has inputs for; the others are knobs.
    run_fields = {name: settings.pop(name) for name in STRATEGY_FIELDS if settings.get(name) is not None}
    knobs = [f"{name}={value}" for name, value in settings.items() if value is not None]
    kept = {name: fields[name] for name in ("workload", "model", "dataset", "precision") if any(fields.get(name, ()))}
    configuration = {name: candidate[name] for name in ("strategy", "workers", "global_batch")}
    measured = {**kept, **configuration, **run_fields, "repeats": 3, "knob": knobs}
    return {
        "name": candidate["strategy"] + marks,
        "workers": str(candidate["workers"]),
        "batch": f"{candidate['global_batch']:,}",
        "rate": format_rate(rate["value"]),
        "measured": "" if candidate["measured"] is None else OBJECTIVES[objective].text(candidate["measured"]),
        "interval": f"{format_rate(rate['low'])} to {format_rate(rate['high'])}",
        "behind": TIES if candidate["tied"] else format_percent(candidate["behind"]),
        "efficiency": "" if candidate["efficiency"] is None else format_percent(candidate["efficiency"]),
        "memory": format_bytes(candidate["memory_bytes"]["value"]),
        "measure": "/start?" + urlencode(measured, doseq=True),
    }


ROUTES = [
    Route("/advisor", show, methods=["GET"]),
    Route("/advisor", answer, methods=["POST"]),
    Route("/advisor/measure", measure, methods=["POST"]),
]
PAGE = Page("advisor", lambda: ROUTES, title="Advisor", path="/advisor", place=6)
