"""The advisor: what to use for a model, a system and an objective, with reasons; as `paceline recommend` answers."""

import json
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.recommend.objectives import OBJECTIVES
from paceline.systems.files import shipped_systems
from paceline.units import format_bytes, format_percent, format_rate
from paceline.web.asking import Said, ask
from paceline.web.form import Fields, command, option_words
from paceline.web.site import Page, Site, posted, site_of
from paceline.workloads import workloads

FIRST = ("workers", "global_batch", "network", "price")
# Chosen from lists, or of no use here: what is measured is started as a study.
LISTED = ("workload", "objective", "system")
LEFT_OUT = ("db", "as_json", "measure", "emit")
ANSWER_SECONDS = 120.0
SHOWN = 12


def show(request: Request) -> Response:
    """The form."""
    given = {name: request.query_params.getlist(name) for name in request.query_params}
    return _page(request, given, None, [])


async def answer(request: Request) -> Response:
    """The form with its answer below."""
    fields = await posted(request)
    site = site_of(request)
    words = _words(site, fields)
    # A model file of the user's own is run to be looked at, so that only our own pages may ask.
    said = await ask([*words, "--json"], ANSWER_SECONDS)
    return _page(request, fields, said, words)


def _words(site: Site, fields: Fields) -> list[str]:
    options = [option for option in site.advice_options if option.name not in LEFT_OUT]
    return ["recommend", *option_words(fields, options, site.named_db)]


def _page(request: Request, given: Fields, said: Said | None, words: list[str]) -> Response:
    site = site_of(request)
    options = {o.name: o for o in site.advice_options if o.name not in (*LISTED, *LEFT_OUT)}
    values: dict[str, Any] = {
        "given": given,
        "workloads": {name: found.about for name, found in workloads().items()},
        "objectives": {name: found.about for name, found in OBJECTIVES.items()},
        "systems": shipped_systems(),
        "first": [options[name] for name in FIRST if name in options],
        "more": [option for name, option in options.items() if name not in FIRST],
        "command": command(words) if words else "",
        "script": command([*words, "--emit=script"]) if words else "",
        "trouble": said.err if said is not None and said.code != 0 else "",
        "warning": said.err if said is not None and said.code == 0 else "",
        "advice": _advice(json.loads(said.out), given) if said is not None and said.code == 0 else None,
    }
    return site.render(request, "advisor.html.j2", values)


def _advice(found: dict[str, Any], given: Fields) -> dict[str, Any]:
    return {
        "reasons": found["reasons"],
        "ranked": [_line(one, given) for one in found["ranked"][:SHOWN]],
        "hidden": max(0, len(found["ranked"]) - SHOWN),
        "excluded": found["excluded"],
        "system": found["system"],
    }


def _line(one: dict[str, Any], given: Fields) -> dict[str, str]:
    """One candidate as text, and the form that would measure it."""
    rate, knobs = one["samples_per_second"], one["knobs"]
    marks = "".join(f" {name}={value}" for name, value in knobs.items())
    kept = {name: given[name] for name in ("workload", "model", "dataset", "precision") if any(given.get(name, ()))}
    fields = {**kept, "strategy": one["strategy"], "workers": one["workers"], "global_batch": one["global_batch"],
              "repeats": 3, "knob": [f"{name}={value}" for name, value in knobs.items()]}  # fmt: skip
    return {
        "name": one["strategy"] + marks,
        "workers": str(one["workers"]),
        "batch": f"{one['global_batch']:,}",
        "rate": format_rate(rate["value"]) + (" *" if one["measured"] is not None else ""),
        "interval": f"{format_rate(rate['low'])} to {format_rate(rate['high'])}",
        "behind": "ties" if one["tied"] else format_percent(one["behind"]),
        "efficiency": "" if one["efficiency"] is None else format_percent(one["efficiency"]),
        "memory": format_bytes(one["memory_bytes"]["value"]),
        "measure": "/start?" + urlencode(fields, doseq=True),
    }


def _routes() -> list[Route]:
    return [Route("/advisor", show, methods=["GET"]), Route("/advisor", answer, methods=["POST"])]


PAGE = Page("advisor", _routes, title="Advisor", path="/advisor", place=6)
