"""Tables about batches: how much of a speed-up is progress, and what searches for a target came to with each batch."""

from collections.abc import Sequence

from rich.markup import escape

from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.regimes import BatchSearch, describe_search
from paceline.analysis.rows import Row
from paceline.cli.terminal import output, plain_table
from paceline.units import format_percent, format_seconds


def print_progress(rows: Sequence[Row]) -> None:
    """Prints the noise scale of gradients and how much sooner training gets on; nothing where it is not known."""
    known = [row for row in rows if row.measured and row.noise_scale is not None]
    if not known:
        return
    table = plain_table(
        "progress", "batch", "noise\nscale", "90 %\ninterval", "speed-\nup", "worth of\na sample", "pro-\ngress"
    )
    varying = varying_fields(known)
    for row in known:
        worth = row.progress_speedup / row.speedup if row.progress_speedup and row.speedup else None
        table.add_row(
            escape(f"{series_name(row, varying)} x{row.spec.workers}"), f"{row.spec.samples_per_step:,}",
            f"{row.noise_scale:,.0f}", _interval(row), _times(row.speedup),
            "–" if worth is None else format_percent(worth), _times(row.progress_speedup),
        )  # fmt: skip
    note = (
        "noise scale: of gradients, in samples, in the last epoch that tells it; worth of a sample: beside one in the "
        "batch of one worker (Pollux); progress: speed-up times that"
    )
    output().print()
    output().print(table)
    output().print(f"[dim]{note}[/]")


def _interval(row: Row) -> str:
    measured = [noise for noise in row.noise if noise.scale is not None]
    if not measured:
        return "of a run alike"
    low, high = measured[-1].low, measured[-1].high
    return f"{'–' if low is None else f'{low:,.0f}'} to {'–' if high is None else f'{high:,.0f}'}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def print_search(search: BatchSearch) -> None:
    """Prints steps to the target of each batch with its best learning rate, and the regimes in sentences."""
    table = plain_table(
        f"batch to {search.target}", "best\nlr", "rates that\nreached it", "steps", "samples", "time of\nits steps"
    )
    for outcome in search.outcomes:
        few, many = min(outcome.steps), max(outcome.steps)
        middle = sorted(outcome.steps)[len(outcome.steps) // 2]
        seconds = outcome.step_seconds
        table.add_row(
            f"{outcome.batch:,}", f"{outcome.lr:g}", f"{len(outcome.reached)} of {len(outcome.tried)}",
            f"{few:,.0f}" if few == many else f"{few:,.0f} to {many:,.0f}", f"{middle * outcome.batch:,.0f}",
            "–" if seconds is None else format_seconds(seconds * middle),
        )  # fmt: skip
    console = output()
    console.print(f"\n[bold]{escape(search.title)}[/]")
    console.print(table)
    for sentence in describe_search(search):
        console.print(escape(sentence))
