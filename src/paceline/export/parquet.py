"""One table as Parquet: typed columns that pandas, polars, DuckDB and Spark read."""

from collections.abc import Sequence

from paceline.analysis.tables import frame_of
from paceline.export.base import Exporter, writing
from paceline.record import Record
from paceline.units import format_count


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One line per configuration, run, epoch or step."""
    frame = frame_of(records, of)
    with writing(out) as path:
        frame.write_parquet(path)
    return f"{format_count(frame.height, 'line')}, {format_count(frame.width, 'column')}"


EXPORTER = Exporter("parquet", "one table as Parquet", "paceline.parquet", write, one_table=True)
