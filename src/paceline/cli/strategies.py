"""`paceline strategies`: the catalogue, and which of it runs here."""

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from paceline.cli.terminal import output
from paceline.plan import refusal, with_defaults
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import Strategy
from paceline.strategies import strategies as catalogue
from paceline.systems import System, local_system


def strategies(
    knobs: Annotated[bool, typer.Option("--knobs", help="List the settings of each strategy too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """The table of strategies: family, framework, whether it runs here or why not."""
    system = local_system()
    if as_json:
        typer.echo(json.dumps([_as_values(chosen, system) for chosen in catalogue().values()], indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("strategy", "family", "sync", "runs here", "what it does"):
        table.add_column(name, overflow="fold", no_wrap=name in ("strategy", "family", "sync"))
    for chosen in catalogue().values():
        reason = why_not(chosen, system)
        here = f"[yellow]no:[/] {escape(reason)}" if reason else "[green]yes[/]"
        table.add_row(chosen.name, chosen.family, "yes" if chosen.synchronous else "no", here, chosen.about)
        if knobs:
            for knob in chosen.knobs:
                choices = f" ({', '.join(map(str, knob.choices))})" if knob.choices else ""
                table.add_row("", "", "", f"  {knob.name}={knob.default}", f"[dim]{knob.about}{choices}[/]")
    output().print(table)


def why_not(chosen: Strategy, system: System) -> str | None:
    """Why the strategy cannot run on this machine, tried on a plain run of its smallest size."""
    workers = chosen.fixed_workers or 2
    device = "cpu" if "cpu" in chosen.devices else chosen.devices[0]
    spec = RunSpec.model_validate(
        {"strategy": chosen.name, "workers": workers, "device": device, "dataset": "mnist-5k", **with_defaults({})}
    )
    return refusal(spec, system, probe)


def _as_values(chosen: Strategy, system: System) -> dict[str, object]:
    return {
        "name": chosen.name,
        "family": chosen.family,
        "framework": chosen.framework,
        "synchronous": chosen.synchronous,
        "about": chosen.about,
        "use_when": chosen.use_when,
        "runs_here": why_not(chosen, system) is None,
        "why_not": why_not(chosen, system),
        "knobs": {knob.name: {"default": knob.default, "about": knob.about} for knob in chosen.knobs},
    }
