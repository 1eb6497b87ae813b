"""One table as Parquet: typed columns that pandas, polars, DuckDB and Spark read."""

from collections.abc import Sequence

from paceline.export.base import Exporter, write_table
from paceline.record import Record


def write(records: Sequence[Record], out: str, of: str) -> str:
    """One line per configuration, run, epoch or step."""
    return write_table(records, out, of, lambda frame, path: frame.write_parquet(path))


EXPORTER = Exporter("parquet", "one table as Parquet", "paceline.parquet", write, one_table=True)
