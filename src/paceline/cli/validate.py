"""`paceline validate`: predictions beside what was measured here and what others published."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.markup import escape

from paceline.cli.options import Network, System, make_option
from paceline.cli.terminal import AsJson, Db, StudyName, errors, output, plain_table, print_json, refuse_unknown_study
from paceline.errors import SpecError
from paceline.predict.against import ChoiceLoss, ComparedRun, Comparison, ErrorSummary, compare
from paceline.predict.logged import read_log
from paceline.predict.published.scaling import PublishedRow, published_rows, summarise_published
from paceline.predict.published.stacks import counted, stack_biases
from paceline.predict.published.training import TrainingRow, summarise_tables, training_rows
from paceline.predict.validate import Row, Summary, Validation, summarise, validate_records
from paceline.store import DEFAULT_PATH, Store
from paceline.systems.files import load_hardware
from paceline.systems.hardware import Hardware
from paceline.units import format_percent, format_seconds
from paceline.user_input.paths import is_file

# Of runs that could not be used, and of the worst predicted ones, so many are shown; JSON has all.
SHOWN = 5


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
    measured = Validation([], {})
    with errors().status("reading the results file") as status:
        if is_file(db):
            with Store.open_existing(db) as store:
                refuse_unknown_study(store, study)
                measured = validate_records(
                    store.records(study), hardware, tell=lambda text: status.update(escape(text))
                )
        status.update("predicting published runs")
        published, training = published_rows(), list(training_rows())
    if as_json:
        print_json({**_values(measured, published), "training": _training_values(training)})
        return
    _print_measured(measured, calibrated=hardware.calibration is not None and not hardware.measured_elsewhere)
    _print_published(published)
    _print_training(training)


def _against(path: Path, hardware: Hardware, assumed: dict[str, str], as_json: bool) -> None:
    """Holds predictions against logged rows; rows are completed with the assumptions of the fitted system."""
    fitted = hardware.software.assumed if hardware.software else {}
    log = read_log(path, {**fitted, **assumed})
    comparison = compare(log.runs, hardware, log.refused)
    if not comparison.rows:
        reason = next(iter(comparison.refused.values()))
        raise SpecError(f"no run of {path} can be predicted for {hardware.name}: {reason}")
    if as_json:
        print_json(comparison_values(comparison))
    else:
        print_comparison(comparison, f"{path.name} for {hardware.name}")


def _values(measured: Validation, published: Sequence[PublishedRow]) -> dict[str, object]:
    return {
        "measured": [
            {"strategy": row.spec.strategy, "workload": row.spec.workload, "workers": row.spec.workers,
             "global_batch": row.spec.samples_per_step, "link": row.spec.link.text if row.spec.link else None,
             "basis": row.basis, "predicted_seconds": row.predicted.value,
             "low": row.predicted.low, "high": row.predicted.high, "measured_seconds": row.measured,
             "error": row.error, "inside": row.inside, "used_to_calibrate": row.used_to_calibrate,
             "memory_error": row.memory_error, "records": list(row.records)}
            for row in measured.rows
        ],
        "left_out": measured.left_out,
        "published": [{**asdict(row), "error": row.error} for row in published],
    }  # fmt: skip


def _print_measured(measured: Validation, calibrated: bool) -> None:
    console, rows = output(), measured.rows
    print_refused(measured.left_out)
    if not rows:
        what = "there are no runs of this machine to compare with" if calibrated else "this machine is not calibrated"
        console.print(f"[dim]{what}; use paceline calibrate, then paceline run, to have runs to compare with[/]")
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
    link = f" over {spec.link.text}" if spec.link else ""
    return escape(f"{spec.workload}{options} {spec.strategy} x{spec.workers}{link} batch {spec.samples_per_step}{mark}")


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
    console.print(
        "[dim]what one device does is taken from the source; "
        "‡ the source leaves open what was trained or how it was fed[/]"
    )


def _training_values(rows: Sequence[TrainingRow]) -> list[dict[str, object]]:
    """All rows as values for JSON."""
    return [
        {"table": row.table, "stack": row.stack, "name": row.name, "source": row.source, "method": row.method,
         "published_tokens_per_second": row.published, "predicted_tokens_per_second": vars(row.predicted),
         "error": row.error, "inside": row.inside, "used": row.used, "caveat": row.caveat}
        for row in rows
    ]  # fmt: skip


def _print_training(rows: Sequence[TrainingRow]) -> None:
    """Errors by table and method, what intervals are worth for stacks that decided no speed, and the rows outside."""
    console = output()
    console.print()
    headers = ("rows", "mean\nerror", "bias", "worst", "in-\nside", "90 %")
    table = plain_table("published: tokens/s of each device", *headers)
    table.add_column("computation from")
    for total in summarise_tables(rows):
        mark = (" †" if total.used else "") + (" ‡" if total.caveat else "")
        table.add_row(
            escape(total.table) + mark, str(total.rows), format_percent(total.mean_error), f"{total.bias:+.0%}",
            format_percent(total.worst_error), format_percent(total.coverage), f"±{total.half_width:.0%}",
            escape(total.method),
        )  # fmt: skip
    console.print(table)
    fresh = counted(rows)
    outside = [row for row in fresh if not row.inside]
    console.print(
        f"{len(fresh)} rows of {len(stack_biases(fresh))} software stacks that decided no speed: "
        f"{format_percent(1 - len(outside) / len(fresh))} inside their intervals"
    )
    if outside:
        detail = plain_table("outside", "predicted", "90 %", "published", "error")
        for row in outside:
            ends = f"{row.predicted.low:,.0f} – {row.predicted.high:,.0f}"
            detail.add_row(
                escape(f"{row.table}: {row.name}"), f"{row.predicted.value:,.0f}", ends, f"{row.published:,.0f}",
                f"{row.error:+.0%}",
            )  # fmt: skip
        console.print()
        console.print(detail)
    console.print(
        "[dim]bias and error above zero: predicted too fast; † decided numbers of predictions, so that their stack is "
        "a known one; ‡ not quite what was predicted, and not counted; sources and reasons: --json[/]"
    )


def parse_assumed(words: Sequence[str] | None) -> dict[str, str]:
    """`--assume recompute=none` as names and values."""
    assumed = {}
    for word in words or ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not name or not equals or not value:
            raise SpecError(f"--assume {word!r} is not understood; write such as recompute=none")
        assumed[name] = value
    return assumed


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
            escape(_run_name(row)), format_seconds(row.predicted.value), format_seconds(row.run.step_seconds),
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


def _run_name(row: ComparedRun) -> str:
    spec = row.run.spec
    sizes = "x".join(str(spec.options[name]) for name in ("depth", "width") if name in spec.options)
    return f"{row.run.name}: {spec.workload} {sizes} {spec.spread_over} batch {spec.samples_per_step}"


def comparison_values(comparison: Comparison) -> dict[str, object]:
    """The comparison as values for JSON."""
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
