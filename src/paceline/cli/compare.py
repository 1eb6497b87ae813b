"""`paceline compare`: two sets of runs, and whether they really differ."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from paceline.analysis.comparison import Comparison
from paceline.analysis.comparison import compare as compare_sides
from paceline.analysis.selection import Selector
from paceline.cli.shell.completion import strategies_with_fields
from paceline.cli.terminal import AsJson, Db, StudyName, output, print_json, refuse_unknown_study
from paceline.errors import SpecError
from paceline.record import Record
from paceline.store import DEFAULT_PATH, Store
from paceline.units import format_rate

Side = Annotated[
    str,
    typer.Argument(
        help="A strategy, or one with fields: torch-ddp:workers=2,workload=mnist-small.",
        autocompletion=strategies_with_fields,
    ),
]


def compare(first: Side, second: Side, study: StudyName = None, db: Db = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Two sets of runs with a rank test: which is faster, by how much, or that there is no clear difference."""
    sides = Selector.parse(first), Selector.parse(second)
    with Store.open_existing(db) as store:
        refuse_unknown_study(store, study)
        records = store.records(study)
    comparisons = compare_sides(records, *sides)
    if not comparisons:
        raise SpecError(_nothing_to_compare(sides, records))
    if as_json:
        print_json([{**asdict(comparison), "verdict": comparison.verdict} for comparison in comparisons])
        return
    _print(comparisons)


def _nothing_to_compare(sides: tuple[Selector, Selector], records: Sequence[Record]) -> str:
    for side in sides:
        if not any(record.ok and side.matches(record.spec) for record in records):
            return (
                f"there is no good run of {side} in the results; run it first, or look at what there is: paceline show"
            )
    return (
        f"{sides[0]} and {sides[1]} have no setting in common: the same workload, data, batch and worker count; "
        f"run both in one study, or name the settings to compare (such as {sides[0].strategy}:workers=1)"
    )


def _print(comparisons: list[Comparison]) -> None:
    console = output()
    for setting in dict.fromkeys(comparison.setting for comparison in comparisons):
        console.print(f"\n[bold]{escape(setting)}[/]")
        of_setting = [comparison for comparison in comparisons if comparison.setting == setting]
        console.print(_table(of_setting))
        for comparison in of_setting:
            console.print(f"by {comparison.measure}: {escape(comparison.verdict)}")
    console.print(
        "\n[dim]ratio: of medians, first over second; interval: 95 %, by resampling the runs; p: chance to see this if "
        "both were alike (Mann-Whitney); effect: Cliff's delta[/]"
    )


def _table(comparisons: list[Comparison]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("by")
    # A selector such as `torch-ddp:workers=2,seed=1` is broken at its own marks, not within a word.
    sides = [side.replace(":", ":\n").replace(",", ",\n") for side in (comparisons[0].first, comparisons[0].second)]
    for name in (*sides, "runs", "ratio", "interval", "p", "effect"):
        table.add_column(escape(name), justify="right", overflow="fold")
    for comparison in comparisons:
        interval = f"{comparison.interval.low:.2f} to {comparison.interval.high:.2f}" if comparison.interval else "–"
        table.add_row(
            comparison.measure,
            *(format_rate(median(values)) for values in (comparison.first_values, comparison.second_values)),
            f"{len(comparison.first_values)}, {len(comparison.second_values)}",
            f"{comparison.ratio:.3f}",
            interval,
            "–" if comparison.p_value is None else f"{comparison.p_value:.3f}",
            "–" if comparison.effect is None else f"{comparison.effect:+.2f}",
        )
    return table
