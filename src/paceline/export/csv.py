"""One table as comma-separated values."""

from collections.abc import Sequence

from paceline.analysis.tables import frame_of
from paceline.export.base import Exporter, writing
from paceline.record import Record
from paceline.units import format_count


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One line per configuration, run, epoch or step under a header."""
    frame = frame_of(records, of)
    with writing(out) as path:
        frame.write_csv(path)
    return f"{format_count(frame.height, 'line')}, {format_count(frame.width, 'column')}"


EXPORTER = Exporter("csv", "one table as comma-separated values", "paceline.csv", write, one_table=True)
