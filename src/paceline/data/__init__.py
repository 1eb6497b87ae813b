"""Data sets, one file each, found by listing this folder."""

from functools import cache

from paceline.catalogue import choose, discover, load_named
from paceline.data.base import DataRequest, DataSet, DataSource


@cache
def data_sources() -> dict[str, DataSource]:
    """Every data set by name."""
    return discover("paceline.data", "DATA", DataSource)


def data_source(name: str) -> DataSource:
    """One data set's source by name."""
    return load_named("paceline.data", "DATA", DataSource, name) or choose(name, data_sources(), "data set")


__all__ = ["DataRequest", "DataSet", "DataSource", "data_source", "data_sources"]
