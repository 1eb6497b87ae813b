"""One table as comma-separated values."""

from collections.abc import Sequence

from paceline.export.base import Exporter, write_table
from paceline.record import Record


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One line per configuration, run, epoch or step under a header."""
    return write_table(records, out, of, lambda frame, path: frame.write_csv(path))


EXPORTER = Exporter("csv", "one table as comma-separated values", "paceline.csv", write, one_table=True)
