"""Ways to spread training, one file each, found by listing this folder (and entry points `paceline.strategies`)."""

from functools import cache

from paceline.catalogue import choose, direct, discover
from paceline.strategies.base import Strategy


@cache
def strategies() -> dict[str, Strategy]:
    """Every strategy by name."""
    return discover("paceline.strategies", "STRATEGY", Strategy, entry_points="paceline.strategies")


@cache
def strategy(name: str) -> Strategy:
    """One strategy by name."""
    return direct("paceline.strategies", "STRATEGY", Strategy, name) or choose(name, strategies(), "strategy")


__all__ = ["Strategy", "strategies", "strategy"]
