"""`paceline validate`: predictions beside what was measured here and what others published."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.markup import escape

from paceline.cli.logs import comparison_values, parse_assumed, print_comparison
from paceline.cli.options import Network, System, make_option
from paceline.cli.terminal import AsJson, Db, StudyName, output, plain_table, print_json
from paceline.errors import SpecError
from paceline.predict.against import compare
from paceline.predict.logged import read_log
from paceline.predict.published.scaling import PublishedRow, published_rows, summarise_published
from paceline.predict.published.training import TrainingRow, summarise_tables, training_rows
from paceline.predict.validate import Row, Summary, summarise, validate_records
from paceline.store import DEFAULT_PATH, Store
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware
from paceline.units import format_percent, format_seconds

# Tables with no more rows than this are shown row by row.
FEW_ROWS = 8


def validate(
    study: StudyName = None,
    system: System = None,
    network: Network = None,
    against: Annotated[
        Path | None, make_option("Compare with logged runs instead: a CSV or results file.", "FILE")
    ] = None,
    assume: Annotated[
        list[str] | None, make_option("What rows that do not say so are taken for.", "NAME=VALUE")
    ] = None,
    db: Db = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """Holds predictions against the runs in the results file and published numbers, or against logged runs."""
    hardware = load_hardware(system, network)
    if against is not None:
        _against(against, hardware, parse_assumed(assume), as_json)
        return
    rows: list[Row] = []
    if db.is_file():
        with Store.open_existing(db) as store:
            rows = validate_records(store.records(study), hardware)
    published, training = published_rows(), list(training_rows())
    if as_json:
        print_json({**_values(rows, published), "training": _training_values(training)})
        return
    _print_measured(rows, calibrated=hardware.calibration is not None and not hardware.measured_elsewhere)
    _print_published(published)
    _print_training(training)


def _against(path: Path, hardware: Hardware, assumed: dict[str, str], as_json: bool) -> None:
    """Rows that do not say how they were run are taken for what the rows were that the system was fitted to."""
    known = hardware.software.assumed if hardware.software else {}
    log = read_log(path, {**known, **assumed})
    comparison = compare(log.runs, hardware, log.refused)
    if not comparison.rows:
        reason = next(iter(comparison.refused.values()))
        raise SpecError(f"no run of {path} can be predicted for {hardware.name}: {reason}")
    if as_json:
        print_json(comparison_values(comparison))
    else:
        print_comparison(comparison, f"{path.name} for {hardware.name}")


def _values(rows: Sequence[Row], published: Sequence[PublishedRow]) -> dict[str, object]:
    return {
        "measured": [
            {"strategy": row.spec.strategy, "workload": row.spec.workload, "workers": row.spec.workers,
             "global_batch": row.spec.samples_per_step, "basis": row.basis, "predicted_seconds": row.predicted.value,
             "low": row.predicted.low, "high": row.predicted.high, "measured_seconds": row.measured,
             "error": row.error, "inside": row.inside, "used_to_calibrate": row.used_to_calibrate,
             "memory_error": row.memory_error, "records": list(row.records)}
            for row in rows
        ],
        "published": [{**asdict(row), "error": row.error} for row in published],
    }  # fmt: skip


def _print_measured(rows: Sequence[Row], calibrated: bool) -> None:
    console = output()
    if not rows:
        what = "there are no runs of this machine to compare with" if calibrated else "this machine is not calibrated"
        console.print(f"[dim]{what}; paceline calibrate, then paceline run, give some[/]")
        return
    headers = ("by", "predicted", "90 %", "measured", "error", "in-\nside", "peak\nmemory")
    table = plain_table("measured here", *headers)
    for row in sorted(rows, key=lambda row: (row.used_to_calibrate, row.spec.workload, row.spec.strategy)):
        ends = f"{format_seconds(row.predicted.low)} – {format_seconds(row.predicted.high)}"
        table.add_row(
            _name(row), row.basis, format_seconds(row.predicted.value), ends, format_seconds(row.measured),
            f"{row.error:+.0%}", "yes" if row.inside else "no",
            "–" if row.memory_error is None else f"{row.memory_error:+.0%}",
        )  # fmt: skip
    console.print(table)
    fresh = [row for row in rows if not row.used_to_calibrate]
    for title, group in (("held out", fresh), ("used to calibrate (†)", [row for row in rows if row not in fresh])):
        for method in dict.fromkeys(row.method for row in group):
            some = [row for row in group if row.method == method]
            console.print(f"{title}, from {escape(method)}: {_sentence(summarise(some))}")
    console.print("[dim]by wall clock, or by CPU seconds of all processes where there was other load on the machine[/]")


def _name(row: Row) -> str:
    spec = row.spec
    options = "".join(f" {name}={value}" for name, value in {**spec.options, **spec.settings}.items())
    mark = " †" if row.used_to_calibrate else ""
    return escape(f"{spec.workload}{options} {spec.strategy} x{spec.workers} batch {spec.samples_per_step}{mark}")


def _sentence(total: Summary) -> str:
    order = "" if total.order_kept is None else f", order kept in {format_percent(total.order_kept)} of pairs"
    return (
        f"{total.rows} configurations, mean error {total.mean_error:.1%} (bias {total.bias:+.1%}), worst "
        f"{total.worst_error:.1%}, "
        f"{format_percent(total.coverage)} inside their intervals{order}"
    )


def _print_published(rows: Sequence[PublishedRow]) -> None:
    console = output()
    table = plain_table("published: share of ideal scaling", "predicted", "published", "error")
    table.add_column("source", overflow="fold")
    for row in rows:
        table.add_row(
            escape(row.name) + (" ‡" if row.stand_in else ""), format_percent(row.predicted),
            f"{row.published * 100:.1f} %", f"{row.error:+.0%}", escape(row.source),
        )  # fmt: skip
    total = summarise_published(rows)
    console.print()
    console.print(table)
    console.print(
        f"{total.rows} published numbers, mean error {total.mean_error:.1%}, median {total.median_error:.1%}, worst "
        f"{total.worst_error:.1%}, order kept in {format_percent(total.order_kept)} of pairs"
    )
    console.print("[dim]what one device does is taken from the source; ‡ the source leaves open what was trained[/]")


def _training_values(rows: Sequence[TrainingRow]) -> list[dict[str, object]]:
    """All rows as JSON has them."""
    return [
        {"table": row.table, "name": row.name, "source": row.source, "method": row.method,
         "published_tokens_per_second": row.published, "predicted_tokens_per_second": vars(row.predicted),
         "error": row.error, "inside": row.inside, "used": row.used, "caveat": row.caveat}
        for row in rows
    ]  # fmt: skip


def _print_training(rows: Sequence[TrainingRow]) -> None:
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
