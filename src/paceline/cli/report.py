"""`paceline report`: one HTML page that opens offline, and every figure as files."""

import webbrowser
from pathlib import Path
from typing import Annotated

from paceline.cli.options import make_option
from paceline.cli.terminal import Db, StudyName, errors, flag, output, refuse_unknown_study
from paceline.store import DEFAULT_PATH, Store


def report(
    study: StudyName = None,
    db: Db = DEFAULT_PATH,
    out: Annotated[Path, make_option("Where to write the page.", "FILE")] = Path("paceline-report.html"),
    figures: Annotated[Path | None, make_option("Also write each figure as SVG, PNG and CSV there.", "DIR")] = None,
    open_it: Annotated[bool, flag("--open", "Open it in the browser.")] = False,
) -> None:
    """One self-contained HTML page: the answer, the ranking, the figures, the findings and how to repeat it."""
    from paceline.report import write_figures, write_report

    with Store.open_existing(db) as store:
        refuse_unknown_study(store, study)
        records = store.records(study)
    with errors().status("drawing the figures"):
        path = write_report(records, out)
        written = write_figures(records, figures) if figures is not None else []
    output().print(f"report: {path}", soft_wrap=True, markup=False)
    if figures is not None:
        output().print(f"figures: {len(written)} files in {figures}", soft_wrap=True, markup=False)
    if open_it:
        webbrowser.open(path.resolve().as_uri())
