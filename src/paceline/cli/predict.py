"""`paceline predict`: what runs that nobody made would do, with where the truth may lie."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from paceline.cli.options import QuestionOptions, Strategies, command_with, make_option
from paceline.cli.question import make_question, print_warnings
from paceline.cli.terminal import Db, output
from paceline.errors import SpecError
from paceline.predict.prediction import Estimate, Prediction
from paceline.predict.question import Question
from paceline.store import DEFAULT_PATH
from paceline.units import format_about, format_bytes, format_money, format_percent, format_seconds

# Parts of a step and their headings; one that is nowhere worth mentioning has no column.
PARTS = {"compute": "com-\npute", "exposed": "ex-\nposed", "bubble": "bub-\nble", "waiting": "wait-\ning"}
LEAST_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class PredictOptions(QuestionOptions):
    """What is predicted, and how it is shown."""

    strategy: Strategies = "torch-ddp"
    workers: Annotated[str, make_option("Worker counts, such as 1,2,4 or 1..8.", "N,...")] = "1,2,4,8"
    db: Db = DEFAULT_PATH
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False


@command_with(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Predicts time, memory, energy and cost of runs on this machine or another, each with a 90 % interval."""
    question = make_question(options)
    found, refused = answers(question)
    if not found:
        name, reason = next(iter(refused.items()))
        raise SpecError(f"nothing can be predicted: {name}: {reason}")
    if options.as_json:
        typer.echo(json.dumps([as_values(one) for one in found], indent=2, allow_nan=False))
        return
    print_warnings(question, options.db)
    _print(question, found, refused)


def answers(question: Question) -> tuple[list[Prediction], dict[str, str]]:
    """Predictions of all runs that can be made, and why others cannot."""
    found, refused = [], {}
    for name in question.names():
        for spec in question.specs(name):
            reason = question.why_not(spec)
            if reason is not None:
                refused[f"{name} x{spec.workers}"] = reason
            else:
                found.append(question.predictor.predict(spec))
    return found, refused


def as_values(one: Prediction) -> dict[str, Any]:
    """A prediction as plain values; every estimate with its ends."""

    def ends(estimate: Estimate | None) -> dict[str, float] | None:
        return None if estimate is None else vars(estimate)

    return {
        "strategy": one.spec.strategy, "workers": one.spec.workers, "global_batch": one.spec.samples_per_step,
        "knobs": one.spec.knobs, "parts": vars(one.parts), "step_seconds": ends(one.step_seconds),
        "samples_per_second": ends(one.samples_per_second), "epoch_seconds": ends(one.epoch_seconds),
        "speedup": one.speedup, "efficiency": one.efficiency, "memory_bytes": ends(one.memory_bytes),
        "memory_limit_bytes": one.memory_limit_bytes, "fits": one.fits,
        "joules_per_epoch": ends(one.joules_per_epoch), "cost_per_epoch": ends(one.cost_per_epoch),
        "source": one.source, "kind": "predicted",
    }  # fmt: skip


def _print(question: Question, found: Sequence[Prediction], refused: dict[str, str]) -> None:
    console, hardware = output(), question.hardware
    first = found[0].spec
    console.print(
        f"\n[bold]{escape(first.workload)}[/] ({question.facts.parameters:,} parameters) on "
        f"[bold]{escape(hardware.name)}[/], {first.precision}: predicted, with 90 % intervals"
    )
    console.print(_times(found))
    console.print()
    console.print(_spent(found))
    console.print(f"[dim]computation from {escape(found[0].source)}; {escape(hardware.about)}[/]")
    if not all(one.fits for one in found):
        console.print(f"[red]no[/]: a worker has {format_bytes(found[0].memory_limit_bytes)}")
    for name, reason in refused.items():
        console.print(f"[yellow]left out[/] {escape(name)}: {escape(reason)}")


def _times(found: Sequence[Prediction]) -> Table:
    """Steps and their parts."""
    parts = [name for name in PARTS if any(_share(one, name) >= LEAST_SHARE for one in found)]
    table = _table(["step", "samples/s", "90 %", "effi-\nciency", *(PARTS[part] for part in parts)])
    for one in found:
        table.add_row(
            *_name(one), format_seconds(one.parts.step), format_about(one.samples_per_second.value),
            _ends(one.samples_per_second, format_about),
            "–" if one.efficiency is None else format_percent(one.efficiency),
            *(format_percent(_share(one, part)) for part in parts),
        )  # fmt: skip
    return table


def _spent(found: Sequence[Prediction]) -> Table:
    """What an epoch takes."""
    priced = any(one.cost_per_epoch for one in found)
    table = _table(["epoch", "90 %", "memory", "fits", "J per\nepoch", *(["cost per\nepoch"] if priced else [])])
    for one in found:
        table.add_row(
            *_name(one), format_seconds(one.epoch_seconds.value), _ends(one.epoch_seconds, format_seconds),
            format_bytes(one.memory_bytes.value), "yes" if one.fits else "[red]no[/]",
            format_about(one.joules_per_epoch.value),
            *([format_money(one.cost_per_epoch.value)] if one.cost_per_epoch else []),
        )  # fmt: skip
    return table


def _table(headers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("strategy", overflow="fold", min_width=10)
    for name in ("wor-\nkers", "batch", *headers):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(one: Prediction) -> tuple[str, str, str]:
    return escape(one.spec.strategy), str(one.spec.workers), f"{one.spec.samples_per_step:,}"


def _ends(estimate: Estimate, form: Callable[[float], str]) -> str:
    return f"{form(estimate.low)} – {form(estimate.high)}"


def _share(one: Prediction, part: str) -> float:
    return float(getattr(one.parts, part)) / one.parts.step
