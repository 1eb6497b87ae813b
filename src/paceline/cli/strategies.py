"""`paceline strategies`: the catalogue, what each strategy costs, and which run here; or all layouts of a mesh."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_args

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from paceline.cli.fields import parse_pairs
from paceline.cli.options import MODEL_PANEL, ModelOptions, Network, command_with, make_option
from paceline.cli.options import System as SystemOption
from paceline.cli.question import check_precision, model_fields
from paceline.cli.terminal import AsJson, flag, output, plain_table, print_json
from paceline.errors import SpecError, nearest
from paceline.plan import refusal
from paceline.predict.layout_costs import CONTENTS, ORDERS, LayoutCost, Order, layout_costs, strategies_with_layouts
from paceline.predict.question import Question, usual_precision
from paceline.runs.probe import probe
from paceline.spec import Precision, Recompute
from paceline.strategies import Strategy, strategy
from paceline.strategies import strategies as catalogue
from paceline.systems import System, local_system
from paceline.systems.files import load_hardware
from paceline.typical import WORKERS, typical_cost, typical_run
from paceline.units import format_bytes, format_count, format_percent

# Beside what is held and sent in sum, which is there at any width.
WIDE_COLUMNS = 100
LONGEST_WORD = len("replicate=10")
HEADINGS = {"gradients": "gradi-\nents", "parameters": "para-\nmeters", "activations": "acti-\nva-\ntions"}
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
# From so many of a unit on, numbers are short enough to tell from each other.
LEAST_OF_A_UNIT = 5
SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class StrategiesOptions(ModelOptions):
    """What is listed: strategies, or layouts with what they are asked about."""

    knobs: Annotated[bool, flag("--knobs", "List the settings of each strategy too.")] = False
    layouts: Annotated[int | None, make_option("List every layout of so many devices instead.", "N")] = None
    strategy: Annotated[
        str | None, make_option("For --layouts: whose; any strategy that takes a layout.", "NAME", panel=MODEL_PANEL)
    ] = None
    knob: Annotated[
        list[str] | None,
        make_option("For --layouts: setting, such as microbatches=8.", "NAME=VALUE", panel=MODEL_PANEL),
    ] = None
    global_batch: Annotated[
        int | None, make_option("For --layouts: samples per step over all devices.", "N", panel=MODEL_PANEL)
    ] = None
    accumulation: Annotated[int, make_option("For --layouts: passes of a step.", "N", panel=MODEL_PANEL)] = 1
    recompute: Annotated[str, make_option("For --layouts: none, selective or full.", "NAME", panel=MODEL_PANEL)] = (
        "none"
    )
    precision: Annotated[str | None, make_option("For --layouts: such as bf16.", "NAME", panel=MODEL_PANEL)] = None
    optimizer: Annotated[
        list[str] | None, make_option("For --layouts: such as name=sgd.", "NAME=VALUE", panel=MODEL_PANEL)
    ] = None
    system: SystemOption = None
    network: Network = None
    sort: Annotated[str, make_option("For --layouts: by what is held, or sent.", "held|sent")] = "held"
    all_layouts: Annotated[bool, flag("--all", f"For --layouts: list more than {SHOWN}.")] = False
    as_json: AsJson = False


@command_with(StrategiesOptions)
def strategies(options: StrategiesOptions) -> None:
    """The table of strategies: family, what each holds and sends, whether it runs here or why not, when to use it.

    With --layouts N, every layout of N devices: what a rank holds and sends in a step, and how long a pipeline idles.
    """
    if options.layouts is not None:
        _show_layouts(options)
        return
    _check_goes_with_layouts(options)
    system = local_system()
    if options.as_json:
        print_json([_as_values(chosen, system) for chosen in catalogue().values()])
        return
    width = max(len(name) for name in catalogue())
    for number, chosen in enumerate(catalogue().values()):
        output().print(_strategy_table(chosen, system, width, header=number == 0, knobs=options.knobs))
    output().print(
        f"[dim]holds: parameters, gradients and optimizer state of a worker; sends: bytes of a worker in one step, and "
        f"messages; both in multiples of the model, on {WORKERS} workers with Adam[/]"
    )


def _strategy_table(chosen: Strategy, system: System, width: int, header: bool, knobs: bool) -> Table:
    """One strategy: a line of facts, then its description in the full width."""
    grid = Table.grid(padding=(0, 0))
    facts = Table(box=None, padding=(0, 1, 0, 0), show_header=header, header_style="dim")
    # Whether it runs here comes first: what is cut off on a narrow terminal is the end.
    for name, size in (("strategy", width), ("here", 4), ("family", 6), ("sync", 4), ("holds", 6), ("sends", 12)):
        facts.add_column(name, min_width=size, no_wrap=True)
    facts.add_column("devices")
    reason, cost = why_not(chosen, system), typical_cost(chosen)
    facts.add_row(
        f"[bold]{chosen.name}[/]", "[yellow]no[/]" if reason else "[green]yes[/]", chosen.family,
        "yes" if chosen.synchronous else "no", cost.held, cost.sent, ", ".join(chosen.needs.devices),
    )  # fmt: skip
    grid.add_row(facts)
    lines = [escape(chosen.about), f"[dim]use it when {escape(chosen.use_when)}[/]"]
    lines += [f"[yellow]not here: {escape(reason)}[/]"] if reason else []
    for knob in chosen.knobs if knobs else ():
        choices = f" ({', '.join(map(str, knob.choices))})" if knob.choices else ""
        lines.append(f"--knob {knob.name}={knob.default}  [dim]{escape(knob.about + choices)}[/]")
    for line in lines:
        grid.add_row(Padding(line, (0, 0, 0, 2)))
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


def _check_goes_with_layouts(options: StrategiesOptions) -> None:
    """Refuses options about a model where --layouts is not given."""
    alone = ("knobs", "layouts", "as_json")
    for field in fields(options):
        if field.name not in alone and getattr(options, field.name) != field.default:
            name = {"all_layouts": "all"}.get(field.name, field.name).replace("_", "-")
            raise SpecError(f"--{name} is about the layouts of a model; add --layouts N, or leave it out")


def _show_layouts(options: StrategiesOptions) -> None:
    """The table of all layouts, or the same as JSON."""
    question, name, order = _question(options), _strategy(options), _order(options)
    assert options.layouts is not None
    costs, refused = layout_costs(question, name, options.layouts, order, knows_memory=options.system is not None)
    if not costs:
        layout, reason = next(iter(refused.items()))
        raise SpecError(f"no layout of {options.layouts} devices can be used: {layout}: {reason}")
    if options.as_json:
        left_out = [{"layout": layout, "why_not": reason} for layout, reason in refused.items()]
        print_json({"strategy": name, "sorted_by": order, "layouts": [_values(cost) for cost in costs],
                    "left_out": left_out})  # fmt: skip
        return
    shown = costs if options.all_layouts else costs[:SHOWN]
    _print(question, name, order, shown, len(costs), refused)


def _question(options: StrategiesOptions) -> Question:
    assert options.layouts is not None
    if options.layouts < 1:
        raise SpecError(f"--layouts {options.layouts} is no number of devices; give at least 1")
    for name, least in (("global_batch", options.global_batch), ("accumulation", options.accumulation)):
        if least is not None and least < 1:
            raise SpecError(f"--{name.replace('_', '-')} {least} is below 1; give at least 1")
    kinds = get_args(Recompute)
    if options.recompute not in kinds:
        raise SpecError(f"--recompute {options.recompute!r} is unknown; {nearest(options.recompute, kinds)}")
    pairs = {name: parse_pairs(texts, f"--{name}") for name, texts in
             (("knob", options.knob), ("optimizer", options.optimizer))}  # fmt: skip
    question = Question(
        hardware=load_hardware(options.system, options.network),
        **model_fields(options),
        knobs={name: values[0] for name, values in pairs["knob"].items()},
        optimizer={name: values[0] for name, values in pairs["optimizer"].items()},
        workers=(options.layouts,),
        accumulation=options.accumulation,
        recompute=options.recompute,  # type: ignore[arg-type]  # checked above
        precision=_precision(options),
    )
    return replace(question, global_batches=(options.global_batch,)) if options.global_batch else question


def _precision(options: StrategiesOptions) -> Precision:
    """The precision that was asked for, else the usual one on the system if the strategy supports it."""
    name = _strategy(options)
    precision = check_precision(options.precision) if options.precision is not None else None
    offered = strategy(name).needs.precisions
    if precision is not None and precision not in offered:
        raise SpecError(f"{name} does not train in {precision}; it offers {', '.join(offered)}")
    usual = usual_precision(load_hardware(options.system, options.network))
    return precision or (usual if usual in offered else offered[-1] if usual != "fp32" else offered[0])


def _strategy(options: StrategiesOptions) -> str:
    names = [chosen.name for chosen in strategies_with_layouts()]
    if options.strategy is not None and options.strategy not in names:
        raise SpecError(f"--strategy {options.strategy} takes no layout; use {' or '.join(names)}")
    return options.strategy or names[0]


def _order(options: StrategiesOptions) -> Order:
    for order in ORDERS:
        if options.sort == order:
            return order
    raise SpecError(f"--sort {options.sort!r} is unknown; {nearest(options.sort, ORDERS)}")


def _values(cost: LayoutCost) -> dict[str, Any]:
    rank = cost.heaviest
    return {
        "layout": cost.layout.text, "workers": cost.spec.workers, "global_batch": cost.spec.samples_per_step,
        "held_bytes": {
            "parameters": rank.parameter_bytes, "gradients": rank.gradient_bytes, "optimizer": rank.optimizer_bytes,
            "activations": rank.activation_bytes, "sum": rank.held_bytes,
        },
        "sent_bytes": {**cost.sent_by_content, "sum": cost.busiest.sent_bytes},
        "sent_bytes_by_dimension": cost.sent_by_dimension,
        "bubble": cost.bubble, "memory_bytes": cost.memory_bytes, "fits": cost.fits, "kind": "counted",
    }  # fmt: skip


def _print(
    question: Question, name: str, order: Order, costs: Sequence[LayoutCost], count: int, refused: dict[str, str]
) -> None:
    console, spec = output(), costs[0].spec
    console.print(
        f"\n[bold]{escape(spec.workload)}[/] ({question.facts.parameters:,} parameters), "
        f"{format_count(count, 'layout')} of {format_count(spec.workers, 'device')} with {name}, global batch "
        f"{spec.samples_per_step:,}, {spec.optimizer.name}, {spec.precision}, recompute {spec.recompute}; "
        f"{'lightest rank' if order == 'held' else 'least sent'} first"
    )
    console.print(_table(costs, wide=console.width >= WIDE_COLUMNS))
    if count > len(costs):
        console.print(f"[dim]{count - len(costs)} more: --all[/]")
    for sentence in _notes(question, costs):
        console.print(f"[dim]{escape(sentence)}[/]")
    if refused:
        layout, reason = next(iter(refused.items()))
        console.print(
            f"[yellow]left out[/] {format_count(len(refused), 'layout')}, such as {escape(layout)}: {escape(reason)}"
        )


def _notes(question: Question, costs: Sequence[LayoutCost]) -> list[str]:
    link = "gloo on cores sends it" if question.hardware.kind == "cpu" else "NCCL sends it"
    notes = [] if question.assumption is None else [question.assumption]
    notes += [
        f"held by the rank that holds most, sent in a step by the rank that sends most, as {link}; "
        f"counted from the model, nothing was run"
    ]
    if any(cost.bubble for cost in costs):
        notes.append("bubble: share of a step in which a rank of the pipeline waits, by counted work alone")
    if costs[0].fits is not None:
        limit = question.hardware.device.memory_bytes.value
        notes.append(f"fits: with what the framework takes beside, in {format_bytes(limit)} ({question.hardware.name})")
    return notes


def _table(costs: Sequence[LayoutCost], wide: bool) -> Table:
    held_unit = _unit(cost.heaviest.held_bytes for cost in costs)
    sent_unit = _unit(cost.busiest.sent_bytes for cost in costs)
    contents = [name for name in CONTENTS if any(cost.sent_by_content.get(name) for cost in costs)]
    headings = [f"holds\n{held_unit}", "para-\nmeters", "gradi-\nents", "opti-\nmizer", "acti-\nva-\ntions"]
    headings += [f"sends\n{sent_unit}"] if wide or not contents else []
    headings += [
        ("" if wide or number else f"sends\n{sent_unit}\n") + HEADINGS[name] for number, name in enumerate(contents)
    ]
    bubbles, fits = any(cost.bubble for cost in costs), costs[0].fits is not None
    headings += (["bub-\nble"] if bubbles else []) + (["fits"] if fits else [])
    table = plain_table("layout", *headings, least_width=LONGEST_WORD)
    for cost in costs:
        rank = cost.heaviest
        held = (rank.held_bytes, rank.parameter_bytes, rank.gradient_bytes, rank.optimizer_bytes, rank.activation_bytes)
        sent = [cost.busiest.sent_bytes] if wide or not contents else []
        sent += [cost.sent_by_content.get(name, 0.0) for name in contents]
        table.add_row(
            escape(cost.layout.text.replace(",", " ")),
            *(_number(value / UNITS[held_unit]) for value in held),
            *(_number(value / UNITS[sent_unit]) for value in sent),
            *([format_percent(cost.bubble) if cost.bubble else "–"] if bubbles else []),
            *(["yes" if cost.fits else "[red]no[/]"] if fits else []),
        )  # fmt: skip
    return table


def _unit(values: Any) -> str:
    """The largest unit in which all but small values are at least one."""
    largest = max(values, default=0.0)
    return next((name for name, size in UNITS.items() if largest >= LEAST_OF_A_UNIT * size), "kB")


def _number(value: float) -> str:
    """The value with three significant digits, at most hundredths."""
    if not value:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
