"""Everything that is known as one JSON file: rows, findings, and the records with the seconds of every step."""

import json
from collections.abc import Sequence
from importlib.metadata import version

from paceline.analysis.findings import finding_values, gather_findings
from paceline.analysis.frame import flat_rows
from paceline.analysis.labels import run_names
from paceline.analysis.rows import summarise
from paceline.export.base import Exporter, writing
from paceline.record import Record
from paceline.units import format_count


def write(records: Sequence[Record], out: str, of: str) -> str:
    """Records keep the fields that docs/results-format.md gives them."""
    rows = summarise(records)
    values = {
        "paceline": version("paceline"),
        "rows": flat_rows(rows),
        "findings": finding_values(gather_findings(records, rows)),
        "names": run_names(records),
        "records": [record.model_dump(mode="json", by_alias=True) for record in records],
    }
    text = json.dumps(values, indent=1, allow_nan=False)
    with writing(out) as path:
        path.write_text(text, encoding="utf-8")
    return f"{format_count(len(rows), 'configuration')}, {format_count(len(records), 'run')}"


EXPORTER = Exporter("json", "everything, with every step, as one file", "paceline.json", write)
