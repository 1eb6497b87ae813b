"""Results and figures as a notebook shows them: HTML and pictures, without scripts."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from paceline.analysis.answer import answer, headline
from paceline.analysis.cells import row_name
from paceline.analysis.findings import gather_findings
from paceline.analysis.labels import group_by_setting, unmeasured_in_settings, varying_fields
from paceline.analysis.quality import used_columns
from paceline.analysis.rows import Row
from paceline.record import Record


def results_html(records: Sequence[Record], rows: Sequence[Row]) -> str:
    """A line for each of several settings, a table per setting with its answer, what gave none, and the findings."""
    parts = [_verdicts_html(rows)]
    parts += [_setting_html(title, group) for title, group in group_by_setting(rows).items()]
    for name, status, reason, where in unmeasured_in_settings(rows):
        place = f" ({escape(where)})" if where else ""
        parts.append(f"<p>{escape(status)} {escape(name)}: {escape(reason)}{place}</p>")
    for item in gather_findings(records, rows):
        finding = item.finding
        code = escape(finding.code.replace("_", " "))
        parts.append(f"<p><b>{code}</b>: {escape(finding.text)}. <i>{escape(finding.hint)}.</i></p>")
    return "".join(parts) or "<p>no runs</p>"


def _verdicts_html(rows: Sequence[Row]) -> str:
    """The best of each setting, as the report leads with; empty for one setting, whose table has its answer."""
    said = answer(rows)
    if said is None or not said.lines:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("setting", "best", "by how much", "how sure"))
    cells = [(line.setting, line.best, line.ahead, line.how_sure) for line in said.lines]
    lines = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>" for texts in cells)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return f"<p><b>{escape(said.sentences[0])}</b></p>{table}"


def _setting_html(title: str, rows: Sequence[Row]) -> str:
    varying, measured = varying_fields(rows), [row for row in rows if row.measured]
    if not measured:
        return ""
    used, verdict = used_columns(measured), headline(rows)
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in used)
    lines = []
    for row in measured:
        texts = [column.cell(row).text for column in used]
        star = " *" if row.oversubscribed else ""
        name = escape(row_name(row, varying)) + star
        lines.append(f"<tr><th>{name}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>")
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    sentence = f"<p>{escape(verdict)}</p>" if verdict else ""
    return f"<h4>{escape(title)}</h4>{sentence}{table}"


@dataclass(frozen=True)
class Gallery:
    """Figures as pictures, each under the question that it answers."""

    pictures: dict[str, str]

    def _repr_html_(self) -> str:
        return "".join(
            f'<h4>{escape(question)}</h4><img alt="{escape(question)}" style="background: white" '
            f'src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
            for question, svg in self.pictures.items()
        )

    def __repr__(self) -> str:
        return "figures: " + "; ".join(self.pictures)
