"""Where the time of a step goes, rank by rank, as a table in the terminal."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.breakdown import PARTS, RankBreakdown
from paceline.cli.terminal import output

# Short enough for a terminal of 80 columns; the parts in the order of `PARTS`.
HEADERS = (
    "rank", "step", "in-\nput", "for-\nward", "back-\nward", "ex-\nposed", "wait-\ning", "opti-\nmizer", "other",
    "hid-\nden",
)  # fmt: skip


def print_breakdown(rows: Sequence[Row]) -> None:
    """One line per rank; nothing where no run was instrumented, but a word on how to get it."""
    console, known = output(), [row for row in rows if row.breakdown]
    if not known:
        if any(row.measured for row in rows):
            console.print("[dim]where the time goes is not known here: run it with --breakdown[/]")
        return
    varying = varying_fields(rows)
    names = {row.key: f"{series_name(row, varying)} x{row.spec.workers}" for row in known}
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("ms of a step", overflow="fold", min_width=min(20, max(map(len, names.values()))))
    for name in HEADERS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in known:
        for place, rank in enumerate(row.breakdown):
            table.add_row(escape(names[row.key]) if place == 0 else "", str(rank.rank), *_cells(rank))
    console.print()
    console.print(table)
    slower = max(row.watching or 0.0 for row in known)
    watched = f"up to {slower:.0%} longer than" if slower > 0 else "no longer than"
    console.print(
        "[dim]exposed: transfer that a rank stands still for; waiting: for slower ranks to come to it; hidden: "
        f"transfer behind computation. From instrumented runs, whose steps were {watched} the timed ones[/]"
    )


def _cells(rank: RankBreakdown) -> list[str]:
    values = [rank.step, *(getattr(rank, part) for part in PARTS), rank.overlapped]
    return [f"{value * 1e3:.1f}" if value < 1 else f"{value * 1e3:,.0f}" for value in values]
