"""`paceline explain`: why each strategy scales as it does, in sentences."""

from typing import Annotated

import typer
from rich.markup import escape

from paceline.analysis.answer import headline
from paceline.analysis.explanation import explain as explain_row
from paceline.analysis.labels import group_by_setting, series_name, varying_fields
from paceline.analysis.rows import summarise
from paceline.analysis.selection import Selector
from paceline.analysis.thresholds import thresholds
from paceline.cli.terminal import Db, StudyName, output, refuse_unknown_study
from paceline.errors import UserError
from paceline.store import DEFAULT_PATH, Store


def explain(
    which: Annotated[
        str | None, typer.Argument(help="Only a strategy, or one with fields: torch-ddp:workers=2.", show_default=False)
    ] = None,
    study: StudyName = None,
    db: Db = DEFAULT_PATH,
) -> None:
    """Why each strategy scales as it does: what fills its steps, whom it waits for, from where on it pays."""
    selector = Selector.parse(which) if which is not None else None
    with Store.open_existing(db) as store:
        refuse_unknown_study(store, study)
        rows = summarise(store.records(study))
    console, explained = output(), False
    for title, group in group_by_setting(rows).items():
        varying = varying_fields(group)
        chosen = [row for row in group if selector is None or selector.matches(row.spec)]
        explanations = [(row, sentences) for row in chosen if (sentences := explain_row(row, group))]
        if not explanations:
            continue
        explained = True
        console.print(f"\n[bold]{escape(title)}[/]")
        if selector is None and (answer := headline(group)):
            console.print(escape(answer))
        for row, sentences in explanations:
            name = f"{series_name(row, varying)} x{row.spec.workers}"
            console.print(f"[bold]{escape(name)}[/]: {escape(' '.join(sentences))}")
    chosen = [row for row in rows if selector is None or selector.matches(row.spec)]
    if explained and (measured := thresholds(chosen)):
        console.print("\n[bold]From where on it pays[/]")
        for sentence in measured:
            console.print(escape(sentence))
    if not explained:
        raise UserError(
            "there is nothing to explain: no run with more than one worker, or that waits for its data, is stored"
            + (f" for {which}" if which else "")
            + "; run a strategy with --workers 1,2 --breakdown"
        )
