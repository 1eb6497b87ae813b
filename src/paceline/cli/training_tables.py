"""Published training rates beside predictions, as `paceline validate` shows them: a line for each table and method."""

from collections.abc import Sequence

from rich.markup import escape

from paceline.cli.terminal import output, plain_table
from paceline.predict.published_training import TrainingRow, summarise_tables
from paceline.units import format_percent

# Tables with no more rows than this are shown row by row.
FEW_ROWS = 8


def training_values(rows: Sequence[TrainingRow]) -> list[dict[str, object]]:
    """All rows as JSON has them."""
    return [
        {"table": row.table, "name": row.name, "source": row.source, "method": row.method,
         "published_tokens_per_second": row.published, "predicted_tokens_per_second": vars(row.predicted),
         "error": row.error, "inside": row.inside, "used": row.used, "caveat": row.caveat}
        for row in rows
    ]  # fmt: skip


def print_training(rows: Sequence[TrainingRow]) -> None:
    """Errors by table and method, and small tables in full."""
    console = output()
    console.print()
    table = plain_table("published: tokens/s of each device", "rows", "mean\nerror", "bias", "worst", "in-\nside")
    table.add_column("computation from")
    for total in summarise_tables(rows):
        table.add_row(
            escape(total.table), str(total.rows), format_percent(total.mean_error), f"{total.bias:+.0%}",
            format_percent(total.worst_error), format_percent(total.coverage), escape(total.method),
        )  # fmt: skip
    console.print(table)
    counts = {row.table: sum(other.table == row.table for other in rows) for row in rows}
    small = [row for row in rows if counts[row.table] <= FEW_ROWS]
    if small:
        detail = plain_table("of which", "predicted", "90 %", "published", "error")
        for row in small:
            ends = f"{row.predicted.low:,.0f} – {row.predicted.high:,.0f}"
            detail.add_row(
                escape(f"{row.table}: {row.name}") + (" ‡" if row.caveat else ""), f"{row.predicted.value:,.0f}", ends,
                f"{row.published:,.0f}", f"{row.error:+.0%}",
            )  # fmt: skip
        console.print()
        console.print(detail)
    caveats = sorted({row.caveat for row in rows if row.caveat})
    marked = f"; ‡ {', '.join(caveats)}" if caveats else ""
    console.print(f"[dim]bias and error above zero: predicted too fast{marked}; sources: --json[/]")
