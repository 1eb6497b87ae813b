"""Figures, found by listing this folder (five are in `against_workers`): pure functions from rows to a chart."""

from functools import cache

from paceline.catalogue import choose, discover
from paceline.figures.against_workers import FIGURES
from paceline.figures.base import Figure


@cache
def figures() -> dict[str, Figure]:
    """Every figure by name, in the order of a report."""
    every = [*discover("paceline.figures", "FIGURE", Figure).values(), *FIGURES]
    return {figure.name: figure for figure in sorted(every, key=lambda figure: figure.place)}


def figure(name: str) -> Figure:
    """One figure by name."""
    return choose(name, figures(), "figure")


__all__ = ["Figure", "figure", "figures"]
