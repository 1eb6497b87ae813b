"""`paceline show`: results as tables, JSON or CSV."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from paceline.analysis.answer import headline, verdict_lines
from paceline.analysis.batches.agreement import compare_with_noise
from paceline.analysis.batches.asynchrony import asynchronous_searches, describe_asynchrony
from paceline.analysis.batches.regimes import batch_searches
from paceline.analysis.cells import Column as QualityColumn
from paceline.analysis.findings import GatheredFinding, json_lists
from paceline.analysis.frame import csv_text, flat_rows
from paceline.analysis.labels import group_by_setting, series_name, unmeasured_in_settings, varying_fields
from paceline.analysis.quality import quality_columns
from paceline.analysis.rows import Row, SummaryOptions
from paceline.cli.options import make_option
from paceline.cli.tables.detail_tables import TABLES, print_progress, print_search
from paceline.cli.tables.long_table import LongTable
from paceline.cli.tables.summaries import summarise_file
from paceline.cli.terminal import Db, StudyName, flag, output, print_json_lists, refuse_unknown_study
from paceline.errors import UserError
from paceline.record import Record
from paceline.store import DEFAULT_PATH, Store
from paceline.units import format_percent, format_rate

Text = Callable[[float], str]
# A field that has a column of its own where it varies.
LINK = "link"
# Of fewer settings, the sentence below each table is enough.
LEAST_LISTED = 3


def show(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    study: StudyName = None,
    db: Db = DEFAULT_PATH,
    as_json: Annotated[bool, flag("--json", "As JSON, with findings.")] = False,
    as_csv: Annotated[bool, flag("--csv", "As CSV, one line per configuration.")] = False,
    logs: Annotated[
        bool, flag("--logs", "Also the end of the log of scripts, and of runs that did not end well.")
    ] = False,
    breakdown: Annotated[bool, flag("--breakdown", "Where the time of a step goes, rank by rank.")] = False,
    energy: Annotated[bool, flag("--energy", "Joules and, with a price, money.")] = False,
    memory: Annotated[bool, flag("--memory", "What each process held in memory.")] = False,
    convergence: Annotated[bool, flag("--convergence", "Time to a target accuracy, spread over seeds.")] = False,
    statistics: Annotated[
        bool, flag("--statistics", "Interval of the median, olympic mean, variation, CPU time, warm-up.")
    ] = False,
    checkpoints: Annotated[bool, flag("--checkpoints", "Seconds and bytes to save and to load.")] = False,
    membership: Annotated[bool, flag("--membership", "What departures and arrivals cost.")] = False,
    target: Annotated[
        float | None, make_option("Such as 0.9; 95 % of what runs reach by default.", "SHARE", "--target-accuracy")
    ] = None,
    price: Annotated[
        float | None, make_option("In any currency, for the cost.", "MONEY", "--price-per-device-hour")
    ] = None,
    oversubscribed: Annotated[bool, flag("--oversubscribed", "Also give efficiency of oversubscribed runs.")] = False,
) -> None:
    """The results as tables: medians, spread, speed-up and scaling efficiency."""
    options = checked_options(target, price)
    with Store.open_existing(db) as store:
        refuse_unknown_study(store, study)
        summary, run_findings = summarise_file(store, study)
        rows = summary.rows(oversubscribed, options)
        findings = run_findings.gather(rows)
        logged = [record for record in store.records(study) if record.log_tail] if logs else []
    if as_json:
        print_json_lists(json_lists(rows, findings))
    elif as_csv:
        typer.echo(csv_text(flat_rows(rows)), nl=False)
    else:
        chosen = {"breakdown": breakdown, "statistics": statistics, "energy": energy or price is not None,
                  "memory": memory, "convergence": convergence or target is not None,
                  "checkpoints": checkpoints or any(row.checkpoint.checkpoint_bytes for row in rows),
                  "membership": membership or any(row.membership for row in rows)}  # fmt: skip
        print_results(rows, findings, [name for name in TABLES if chosen[name]])
        _print_logs(logged)


def checked_options(target: float | None, price: float | None) -> SummaryOptions:
    """The options for rows, if the target is a share and the price is an amount."""
    if target is not None and not 0 < target <= 1:
        raise UserError(f"--target-accuracy {target:g} is no share of the test set; give one such as 0.9")
    if price is not None and not 0 <= price < float("inf"):
        raise UserError(f"--price-per-device-hour {price:g} is no price; give an amount such as 2.50")
    return SummaryOptions(target, price)


def print_results(rows: Sequence[Row], findings: Sequence[GatheredFinding], details: Sequence[str] = ()) -> None:
    """Prints a table per setting, the named tables of `TABLES`, what was not measured and why, and the findings."""
    console = output()
    if not rows:
        console.print("no runs yet: paceline run quick")
    searches = batch_searches(rows)
    for search in searches:
        print_search(search, compare_with_noise(search, rows))
    for comparison in asynchronous_searches(rows):
        console.print(f"\n[bold]{escape(comparison.title)}[/]")
        for line in describe_asynchrony(comparison):
            console.print(escape(line))
    searched = {row.key for search in searches for row in search.rows}
    others = [row for row in rows if row.key not in searched]
    without_result = unmeasured_in_settings(others, without={"link"})
    settings = group_by_setting(others, without={"link"})
    for title, group in settings.items():
        of_setting = [entry for entry in without_result if entry[-1] in ("", title)]
        if not of_setting and not any(row.measured for row in group):
            continue
        console.print(f"\n[bold]{escape(title)}[/]")
        if any(row.measured for row in group):
            console.print(_table(group))
        for name, status, reason, _ in of_setting:
            console.print(f"[yellow]{status}[/] {escape(name)}: {escape(reason)}")
        if sentence := headline(group):
            console.print(escape(sentence))
        print_progress(group)
        for name in details:
            TABLES[name](group)
    titles = {"", *settings}
    _print_unmeasured([entry for entry in without_result if entry[-1] not in titles])
    _print_verdicts(others)
    _print_findings(findings)


def _print_unmeasured(entries: Sequence[tuple[str, str, str, str]]) -> None:
    """What gave no result in several settings and why, once for all of them."""
    if entries:
        output().print()
    for name, status, reason, where in entries:
        output().print(f"[yellow]{status}[/] {escape(name)} {escape(where)}: {escape(reason)}")


def _print_verdicts(rows: Sequence[Row]) -> None:
    """The verdict on each setting in a line, where there are so many that no one keeps them all in mind."""
    lines = verdict_lines(rows)
    if len(lines) < LEAST_LISTED:
        return
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("setting", "best", "by how much", "how sure"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "how sure")
    for line in lines:
        table.add_row(*map(escape, (line.setting, line.best, line.ahead, line.how_sure)))
    output().print()
    output().print(table)


def _print_logs(records: Sequence[Record]) -> None:
    for record in records:
        if record.log_tail:
            name = f"{escape(record.spec.strategy)} x{record.spec.workers}"
            output().print(f"\n[bold]{name}, repeat {record.repeat + 1}[/]")
            output().print(escape(record.log_tail), soft_wrap=True)


LONGEST_HEADING = 6
# How narrow the column of names may get before other columns are cut, and where there is one more of them.
LEAST_NAME, LEAST_NAME_BESIDE_TARGET = 18, 12
# Metrics that a narrow terminal has room for; --json has all of them.
WIDE_COLUMNS, MOST_METRICS = 100, 2
# A heading and what is below it for each row.
Column = tuple[str, Callable[[Row], str]]


def _table(rows: Sequence[Row]) -> LongTable:
    varying = varying_fields(rows)
    names = [name for name in varying if name != LINK]
    titles = [(series_name(row, names), row) for row in rows if row.measured]
    longest = max(len(title) for title, _ in titles)
    quality = quality_columns([row for row in rows if row.measured])
    room = len(quality) if output().width >= WIDE_COLUMNS else MOST_METRICS
    counted = "steps" if any(row.counts_steps for row in rows) else "samples"
    columns = _columns(LINK in varying, counted, short=len(quality) > 1 and output().width < WIDE_COLUMNS)
    columns += [_quality(column) for column in quality[:room]]
    least_width = LEAST_NAME
    if any(row.spec.has_target for row in rows):
        columns.append(("to tar-\nget", _steps_to_target))
        least_width = LEAST_NAME_BESIDE_TARGET
    table = LongTable("strategy", [heading for heading, _ in columns], least_width=min(least_width, longest))
    for title, row in titles:
        table.add_row(escape(title), *(text(row) for _, text in columns))
    return table


def _steps_to_target(row: Row) -> str:
    if not row.spec.has_target:
        return "–"
    return "never" if row.steps_to_target is None else f"{row.steps_to_target:,.0f}"


def _quality(column: QualityColumn) -> Column:
    return folded(column.heading), lambda row: column.cell(row).text or "–"


def folded(heading: str) -> str:
    """A heading of one word in two lines, where it is longer than the numbers below it."""
    if len(heading) <= LONGEST_HEADING or " " in heading:
        return heading.replace(" ", "\n", 1)
    half = len(heading) // 2
    return f"{heading[:half]}-\n{heading[half:]}"


def _columns(linked: bool, counted: str, short: bool) -> list[Column]:
    """The columns behind the name; where links differ, theirs stands in place of the first epoch's speed.

    Where it has to be short, that is left out.
    """

    def number(value: Callable[[Row], float | None], form: Text) -> Callable[[Row], str]:
        return lambda row: "–" if (known := value(row)) is None else form(known)

    link: Column = (LINK, lambda row: row.spec.link.text if row.spec.link else "–")
    first: Column = (f"{counted}/s\nepoch 1", number(lambda row: row.first_epoch_samples_per_second, format_rate))
    return [
        ("wor-\nkers", lambda row: f"{row.spec.workers}{'[yellow]*[/]' if row.oversubscribed else ''}"),
        *([link] if linked else []),
        ("runs", lambda row: str(row.runs)),
        *([] if linked or short else [first]),
        (f"{counted}/s\nlast epoch", number(lambda row: row.samples_per_second, format_rate)),
        ("spread", number(lambda row: row.spread, format_percent)),
        ("speed-\nup", number(lambda row: row.speedup, lambda value: f"{value:.2f}x")),
        ("effi-\nciency", number(lambda row: row.efficiency, format_percent)),
    ]


def _print_findings(findings: Sequence[GatheredFinding]) -> None:
    console = output()
    if findings:
        console.print()
    for item in findings:
        mark = "* " if item.finding.code == "oversubscribed" else ""
        share = f" ({item.count} of {item.total} configurations)" if item.where else ""
        console.print(f"[yellow]{mark}{item.finding.code.replace('_', ' ')}[/]{share}: {escape(item.finding.text)}")
        console.print(f"  [dim]{escape(item.finding.hint)}[/]")
