"""One table as comma-separated values."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.export.base import Exporter, write_table
from paceline.record import Record
from paceline.user_input.printable import spreadsheet_cell

if TYPE_CHECKING:
    import polars


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One line per configuration, run, epoch or step under a header."""
    return write_table(records, out, of, _save)


def _save(frame: "polars.DataFrame", path: Path) -> None:
    import polars

    texts = [name for name, kind in frame.schema.items() if kind == polars.String]
    # Few texts are different: each is looked at once.
    safe = {text: spreadsheet_cell(text) for name in texts for text in frame[name].unique() if text is not None}
    frame.with_columns(polars.col(texts).replace(safe) if texts else []).write_csv(path)


EXPORTER = Exporter("csv", "one table as comma-separated values", "paceline.csv", write, one_table=True)
