"""Rows and findings as JSON values and CSV text: what `show --json`, `show --csv` and the report's downloads hold."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict

from paceline.analysis.findings import gather_findings
from paceline.analysis.frame import flat_rows
from paceline.analysis.rows import Row
from paceline.record import Record


def json_values(records: Sequence[Record], rows: Sequence[Row]) -> dict[str, object]:
    """Rows, the memory of each process and findings as values that JSON can hold."""
    findings = [{**item.finding.model_dump(), "where": list(item.where)} for item in gather_findings(records, rows)]
    memory = [{"key": row.key, **asdict(rank)} for row in rows for rank in row.memory]
    return {"rows": flat_rows(rows), "memory": memory, "findings": findings}


def csv_text(rows: Sequence[Row]) -> str:
    """One line per configuration under a header."""
    lines, buffer = flat_rows(rows), io.StringIO()
    if lines:
        writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return buffer.getvalue()
