"""Figures, one file each, found by listing this folder: pure functions from rows to a chart."""

from functools import cache

from paceline.catalogue import choose, discover
from paceline.figures.base import Figure


@cache
def figures() -> dict[str, Figure]:
    """Every figure by name."""
    return discover("paceline.figures", "FIGURE", Figure)


def figure(name: str) -> Figure:
    """One figure by name."""
    return choose(name, figures(), "figure")


__all__ = ["Figure", "figure", "figures"]
