"""Records ─► the page. Everything a user or a worker wrote is escaped by the template."""

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.analysis.answer import answer
from paceline.analysis.batches.agreement import compare_with_noise
from paceline.analysis.batches.asynchrony import asynchronous_searches, describe_asynchrony
from paceline.analysis.batches.regimes import BatchSearch, batch_searches, describe_search
from paceline.analysis.explanation import progress
from paceline.analysis.findings import GatheredFinding, gather_findings, json_values
from paceline.analysis.frame import csv_text, flat_rows
from paceline.analysis.labels import unmeasured_in_settings
from paceline.analysis.reproduction import recipes
from paceline.analysis.rows import Row, summarise
from paceline.errors import user_can_choose
from paceline.record import Record
from paceline.report.embedded import download, library, pictures, script_data
from paceline.report.table import membership_changes, ranking
from paceline.units import format_bytes
from paceline.user_input.printable import finalize


def write_report(records: Sequence[Record], path: Path) -> Path:
    """Writes the page and returns its path."""
    page = render(records)
    with user_can_choose(f"the report cannot be written to {path}", "place with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    return path


def write_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Writes every figure that the records can be drawn as, as SVG, PNG and CSV in the folder; returns the paths."""
    from paceline.figures import figures
    from paceline.figures.files import write_figure

    rows = summarise(records)
    chosen = [figure for figure in figures().values() if figure.applies(rows)]
    with user_can_choose(f"the figures cannot be written to {folder}", "folder with --figures"):
        return [path for figure in chosen for path in write_figure(figure, rows, folder)]


def render(records: Sequence[Record]) -> str:
    """The page as text."""
    import jinja2

    rows = summarise(records)
    folder = resources.files("paceline.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=finalize
    )
    drawn, findings = pictures(rows), gather_findings(records, rows)
    moments = [record.started_at for record in records]
    return environment.from_string((folder / "page.html.j2").read_text()).render(
        style=(folder / "page.css").read_text(),
        script=(folder / "page.js").read_text(),
        library=library() if drawn else "",
        answer=answer(rows),
        batches=[
            *(("Which batch", search.title, _found_by(search, rows)) for search in batch_searches(rows)),
            *(("Without waiting", each.title, describe_asynchrony(each)) for each in asynchronous_searches(rows)),
        ],
        progress=[sentence for row in rows for sentence in progress(row)],
        without_result=unmeasured_in_settings(rows),
        table=ranking(rows),
        changes=membership_changes(rows),
        figures=drawn,
        specs=script_data({picture.name: picture.spec for picture in drawn}),
        findings=findings,
        environment=_environment(records),
        recipes=[(recipe, download(recipe.text, "application/toml")) for recipe in recipes(records)],
        downloads=_downloads(rows, findings),
        shrunk=list(dict.fromkeys(row.spec.shrunk.text for row in rows if row.spec.shrunk)),
        studies=sorted({record.study for record in records}),
        runs=sum(record.ok for record in records),
        first=min(moments, default=""),
        last=max(moments, default=""),
    )


def _downloads(rows: Sequence[Row], findings: Sequence[GatheredFinding]) -> list[tuple[str, str]]:
    values = json.dumps(json_values(rows, findings), indent=2, allow_nan=False)
    return [
        ("paceline-results.csv", download(csv_text(flat_rows(rows)), "text/csv")),
        ("paceline-results.json", download(values, "application/json")),
    ]


def _found_by(search: BatchSearch, rows: Sequence[Row]) -> list[str]:
    """What a search found, and how far the noise of gradients agrees."""
    compared = compare_with_noise(search, rows)
    return [*describe_search(search), *([compared] if compared is not None else [])]


def _environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    newest = records[-1].environment if records else {}
    shown: dict[str, Callable[[Any], str]] = {
        "memory_bytes": format_bytes,
        "frameworks": lambda versions: ", ".join(f"{name} {version}" for name, version in versions.items()),
        "cores": lambda value: str(len(value)),
    }
    return [(name.replace("_", " "), shown.get(name, str)(value)) for name, value in newest.items() if value]
