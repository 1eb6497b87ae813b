"""`paceline strategies`: the catalogue, what each strategy costs, and which run here; or all layouts of a mesh."""

from rich.markup import escape
from rich.table import Table

from paceline.cli.layouts import StrategiesOptions, check_goes_with_layouts, show_layouts
from paceline.cli.options import command_with
from paceline.cli.terminal import output, print_json
from paceline.plan import refusal
from paceline.runs.probe import probe
from paceline.strategies import Strategy
from paceline.strategies import strategies as catalogue
from paceline.systems import System, local_system
from paceline.typical import WORKERS, typical_cost, typical_run


@command_with(StrategiesOptions)
def strategies(options: StrategiesOptions) -> None:
    """The table of strategies: family, what each holds and sends, whether it runs here or why not, when to use it.

    With --layouts N, every layout of N devices: what a rank holds and sends in a step, and how long a pipeline idles.
    """
    if options.layouts is not None:
        show_layouts(options)
        return
    check_goes_with_layouts(options)
    system = local_system()
    if options.as_json:
        print_json([_as_values(chosen, system) for chosen in catalogue().values()])
        return
    width = max(len(name) for name in catalogue())
    for number, chosen in enumerate(catalogue().values()):
        output().print(_table(chosen, system, width, header=number == 0, knobs=options.knobs))
    output().print(
        f"[dim]holds: parameters, gradients and optimizer state of a worker; sends: bytes of a worker in one step, and "
        f"messages; both in multiples of the model, on {WORKERS} workers with Adam[/]"
    )


def _table(chosen: Strategy, system: System, width: int, header: bool, knobs: bool) -> Table:
    """One strategy: a line of facts, then its description in the full width."""
    grid = Table.grid(padding=(0, 0))
    facts = Table(box=None, padding=(0, 2, 0, 0), show_header=header, header_style="dim")
    for name, size in (("strategy", width), ("family", 6), ("sync", 4), ("holds", 6), ("sends", 12), ("devices", 9)):
        facts.add_column(name, min_width=size, no_wrap=True)
    facts.add_column("here")
    reason, cost = why_not(chosen, system), typical_cost(chosen)
    facts.add_row(
        f"[bold]{chosen.name}[/]", chosen.family, "yes" if chosen.synchronous else "no", cost.held, cost.sent,
        ", ".join(chosen.needs.devices), "[yellow]no[/]" if reason else "[green]yes[/]",
    )  # fmt: skip
    grid.add_row(facts)
    grid.add_row(f"  {escape(chosen.about)}")
    grid.add_row(f"  [dim]use it when {escape(chosen.use_when)}[/]")
    if reason:
        grid.add_row(f"  [yellow]not here: {escape(reason)}[/]")
    for knob in chosen.knobs if knobs else ():
        choices = f" ({', '.join(map(str, knob.choices))})" if knob.choices else ""
        grid.add_row(f"  --knob {knob.name}={knob.default}  [dim]{escape(knob.about + choices)}[/]")
    return grid


def why_not(chosen: Strategy, system: System) -> str | None:
    """Why the strategy cannot run on this machine, tried on a typical run with two workers."""
    workers = chosen.needs.fixed_workers or 2
    return refusal(typical_run(chosen).model_copy(update={"workers": workers}), system, probe)


def _as_values(chosen: Strategy, system: System) -> dict[str, object]:
    reason, cost = why_not(chosen, system), typical_cost(chosen)
    declared = ("name", "family", "framework", "synchronous", "about", "use_when")
    return {
        **{name: getattr(chosen, name) for name in declared},
        "devices": list(chosen.needs.devices),
        "held_over_model": cost.held_over_model,
        "sent_over_model": cost.sent_over_model,
        "messages_per_step": cost.messages,
        "runs_here": reason is None,
        "why_not": reason,
        "knobs": {knob.name: {"default": knob.default, "about": knob.about} for knob in chosen.knobs},
    }
