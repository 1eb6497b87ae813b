"""Ways to spread training, one place each: a file, or a package with all that only it uses; grouped by framework.

Found by listing the folders (and entry points `paceline.strategies`). A declaration imports no framework.
"""

from functools import cache

from paceline.catalogue import choose, discover, load_named
from paceline.contract.strategy import Strategy

FOLDERS = ("torch", "tensorflow", "jax")


@cache
def strategies() -> dict[str, Strategy]:
    """Every strategy by name."""
    found = discover("paceline.strategies", "STRATEGY", Strategy, entry_points="paceline.strategies", folders=FOLDERS)
    return dict(sorted(found.items()))


@cache
def strategy(name: str) -> Strategy:
    """One strategy by name."""
    declared = load_named("paceline.strategies", "STRATEGY", Strategy, name, FOLDERS)
    return declared or choose(name, strategies(), "strategy")


__all__ = ["Strategy", "strategies", "strategy"]
