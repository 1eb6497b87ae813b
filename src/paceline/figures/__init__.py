"""Figures, one file each, found by listing this folder: pure functions from rows to a chart."""

from functools import cache

from paceline.catalogue import choose, discover
from paceline.figures.base import Figure


@cache
def figures() -> dict[str, Figure]:
    """Every figure by name, in the order of a report."""
    groups = discover("paceline.figures", "FIGURE", Figure)
    return dict(sorted(groups.items(), key=lambda item: item[1].place))


def figure(name: str) -> Figure:
    """One figure by name."""
    return choose(name, figures(), "figure")


__all__ = ["Figure", "figure", "figures"]
