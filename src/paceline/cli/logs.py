"""Logged runs on the command line: what `calibrate --from` fits to them, and how `validate --against` compares them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from paceline.calibrate.logs import FITTED, FittedLog
from paceline.cli.terminal import output, plain_table
from paceline.errors import SpecError
from paceline.predict.against import ChoiceLoss, ComparedRun, Comparison, ErrorSummary
from paceline.systems.hardware import Hardware
from paceline.units import format_percent, format_seconds

# Of runs that could not be used, and of the worst predicted ones, so many are shown; JSON has all.
SHOWN = 5


def parse_assumed(words: Sequence[str] | None) -> dict[str, str]:
    """`--assume recompute=none` as names and values."""
    assumed = {}
    for word in words or ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not name or not equals or not value:
            raise SpecError(f"--assume {word!r} is not understood; write such as recompute=none")
        assumed[name] = value
    return assumed


def print_fit(fit: FittedLog, described: Hardware, out: Path) -> None:
    """The numbers before and after, and how well runs are predicted that a fit had not seen."""
    console = output()
    table = plain_table("fitted", described.name, "now")
    for number in FITTED:
        table.add_row(number.name, f"{number.start(described):.3g}", f"{fit.numbers[number.name]:.3g}")
    console.print(table)
    software = fit.hardware.software
    assert software is not None
    console.print(f"attention {software.attention}" + (" (fits better)" if fit.attention_chosen else ""))
    console.print()
    print_summaries("cross-validated", fit.cross_validated)
    if fit.held_out is not None:
        console.print()
        print_summaries("held out", fit.held_out)
    print_refused(fit.refused)
    console.print(f"[dim]{escape(software.source)}[/]", soft_wrap=True)
    console.print(f"[dim]written to {escape(str(out))}; use it with --system {escape(str(out))}[/]")


def print_comparison(comparison: Comparison, where: str) -> None:
    """Errors by kind of run, the order, what a choice by prediction loses, and the worst."""
    console = output()
    print_summaries(where, comparison)
    console.print()
    if comparison.rank_correlation is not None:
        console.print(f"rank correlation within model and GPU count: {comparison.rank_correlation:.2f}")
    for rule, loss in _losses(comparison).items():
        if loss is not None:
            console.print(
                f"choosing {rule}: {format_percent(loss.mean_loss)} longer than the best logged layout on average, "
                f"{format_percent(loss.worst_loss)} at worst, of {loss.groups} models, GPU counts and global batches"
            )
    worst = sorted(comparison.rows, key=lambda row: -abs(row.error))[:SHOWN]
    table = plain_table("worst", "predicted", "logged", "error")
    for row in worst:
        table.add_row(
            escape(_name(row)), format_seconds(row.predicted.value), format_seconds(row.run.step_seconds),
            f"{row.error:+.0%}",
        )  # fmt: skip
    console.print(table)
    print_refused(comparison.refused)


def _losses(comparison: Comparison) -> dict[str, ChoiceLoss | None]:
    return {
        "the layout that is predicted best": comparison.loss_of_predicted,
        "data parallel with the largest micro-batch": comparison.loss_of_data_parallel,
    }


def print_summaries(title: str, comparison: Comparison) -> None:
    """A line for all, for runs within a node and over several, for each kind of layout and each source."""
    table = plain_table(title, "runs", "mean\nerror", "median", "bias", "worst", "in 90 %\ninterval")
    for name, summary in _kinds(comparison).items():
        table.add_row(
            escape(name), str(summary.runs), f"{summary.mean_error:.1%}", f"{summary.median_error:.1%}",
            f"{summary.bias:+.1%}", f"{summary.worst_error:.0%}", format_percent(summary.coverage),
        )  # fmt: skip
    output().print(table)


def _kinds(comparison: Comparison) -> dict[str, ErrorSummary]:
    kinds = {"all": comparison.total, **comparison.by_nodes, **comparison.by_layout}
    return {**kinds, **comparison.by_source} if len(comparison.by_source) > 1 else kinds


def print_refused(refused: Mapping[str, str]) -> None:
    """Runs that could not be used, with the reasons of the first few."""
    for name, reason in list(refused.items())[:SHOWN]:
        output().print(f"[yellow]left out[/] {escape(name)}: {escape(reason)}", soft_wrap=True)
    if len(refused) > SHOWN:
        output().print(f"[yellow]left out[/] {len(refused) - SHOWN} more; --json of validate has all")


def _name(row: ComparedRun) -> str:
    spec = row.run.spec
    sizes = "x".join(str(spec.options[name]) for name in ("depth", "width") if name in spec.options)
    return f"{row.run.name}: {spec.workload} {sizes} {spec.spread_over} batch {spec.samples_per_step}"


def comparison_values(comparison: Comparison) -> dict[str, object]:
    """The same for other programs."""
    losses = {"predicted": comparison.loss_of_predicted, "data_parallel": comparison.loss_of_data_parallel}
    return {
        "total": asdict(comparison.total),
        **{
            kind: {name: asdict(summary) for name, summary in summaries.items()}
            for kind, summaries in (
                ("by_nodes", comparison.by_nodes), ("by_layout", comparison.by_layout),
                ("by_source", comparison.by_source),
            )
        },
        "rank_correlation": comparison.rank_correlation,
        "choice_loss": {name: asdict(loss) if loss else None for name, loss in losses.items()},
        "rows": [
            {"name": row.run.name, "source": row.run.source, "workload": row.run.spec.workload,
             "options": row.run.spec.options, "layout": row.run.spec.layout.text if row.run.spec.layout else None,
             "gpus": row.run.spec.workers, "global_batch": row.run.spec.samples_per_step,
             "micro_batch": row.run.microbatch, "logged_seconds": row.run.step_seconds,
             "predicted_seconds": row.predicted.value, "low": row.predicted.low, "high": row.predicted.high,
             "error": row.error, "inside": row.inside}
            for row in comparison.rows
        ],
        "refused": dict(comparison.refused),
    }  # fmt: skip
