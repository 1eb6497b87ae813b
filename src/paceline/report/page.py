"""Records ─► the page. Everything a user or a worker wrote is escaped by the template."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.analysis.findings import gather
from paceline.analysis.headline import headline
from paceline.analysis.labels import groups, series_name, varying_fields
from paceline.analysis.rows import Row, summarise
from paceline.errors import UserError
from paceline.record import Record
from paceline.units import format_bytes, format_percent, format_rate, format_seconds

COLUMNS = (
    "strategy", "workers", "runs", "samples/s, epoch 1", "samples/s, last epoch", "spread",
    "speed-up", "efficiency", "accuracy", "start-up", "peak memory",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One setting's results as text."""

    title: str
    headline: str | None
    lines: list[list[str]]
    unmeasured: list[tuple[str, str, str]]


def write_report(records: Sequence[Record], path: Path) -> Path:
    """Writes the page and gives its path."""
    page = render(records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {path}: {error.strerror}; choose another place with --out"
        ) from None
    return path


def render(records: Sequence[Record]) -> str:
    """The page as text."""
    import jinja2

    rows = summarise(records)
    template = (resources.files("paceline.report") / "page.html.j2").read_text()
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(
        columns=COLUMNS,
        tables=[_table(title, group) for title, group in groups(rows).items()],
        figures=_figures(rows),
        findings=gather(records, rows),
        environment=_environment(records),
        studies=sorted({record.study for record in records}),
        runs=sum(record.ok for record in records),
        first=min((record.started_at for record in records), default=""),
        last=max((record.started_at for record in records), default=""),
    )


def _table(title: str, rows: list[Row]) -> Table:
    varying = varying_fields(rows)
    names = [series_name(row, varying) for row in rows]
    measured = [_line(row, name) for row, name in zip(rows, names, strict=True) if row.measured]
    unmeasured = [
        (f"{name} x{row.spec.workers}", str(row.status).replace("_", " "), row.reason or "")
        for row, name in zip(rows, names, strict=True)
        if not row.measured
    ]
    return Table(title, headline(rows), measured, unmeasured)


def _line(row: Row, name: str) -> list[str]:
    def text(value: float | None, form: Any) -> str:
        return "" if value is None else form(value)

    workers = f"{row.spec.workers} (oversubscribed)" if row.oversubscribed else str(row.spec.workers)
    return [
        name, workers, str(row.runs),
        text(row.first_epoch_samples_per_second, format_rate), text(row.samples_per_second, format_rate),
        text(row.spread, format_percent), text(row.speedup, lambda value: f"{value:.2f}x"),
        text(row.efficiency, format_percent), text(row.test_accuracy, lambda value: f"{value * 100:.1f} %"),
        text(row.startup_seconds, format_seconds), text(row.peak_memory_bytes, format_bytes),
    ]  # fmt: skip


def _figures(rows: Sequence[Row]) -> list[dict[str, str]]:
    import vl_convert

    from paceline.figures import figures

    return [
        {"question": figure.question, "svg": vl_convert.vegalite_to_svg(figure.draw(rows).to_dict())}
        for figure in figures().values()
        if figure.applies(rows)
    ]


def _environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    newest = records[-1].environment if records else {}
    shown: dict[str, Callable[[Any], str]] = {
        "memory_bytes": format_bytes,
        "frameworks": _versions,
        "cores": lambda value: str(len(value)),
    }
    return [(name.replace("_", " "), shown.get(name, str)(value)) for name, value in newest.items() if value]


def _versions(frameworks: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in frameworks.items())
