"""Results for other tools, one file per kind, found by listing this folder."""

from functools import cache

from paceline.catalogue import choose, discover
from paceline.export.base import Exporter


@cache
def exporters() -> dict[str, Exporter]:
    """Every kind of export by name."""
    return discover("paceline.export", "EXPORTER", Exporter)


def exporter(name: str) -> Exporter:
    """One kind of export by name."""
    return choose(name, exporters(), "export")


__all__ = ["Exporter", "exporter", "exporters"]
