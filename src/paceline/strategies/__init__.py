"""Ways to spread training, one place each: a file, or a package with all that only it uses; grouped by framework.

Found by listing the folders (and entry points `paceline.strategies`). A declaration imports no framework.
"""

from functools import cache

from paceline.catalogue import choose, discover, load_named
from paceline.contract.strategy import Strategy
from paceline.errors import SpecError
from paceline.strategies.former import FORMER_NAMES

FOLDERS = ("torch", "tensorflow", "jax")
# Of what runs as a strategy does and is none to choose.
UNLISTED = "unlisted"


@cache
def strategies() -> dict[str, Strategy]:
    """Every strategy by name."""
    by_name = discover("paceline.strategies", "STRATEGY", Strategy, entry_points="paceline.strategies", folders=FOLDERS)
    return dict(sorted(by_name.items()))


@cache
def strategy(name: str) -> Strategy:
    """One strategy by name; a former name is refused with what it is now."""
    if name in FORMER_NAMES:
        raise SpecError(f"{name} is a layout of {FORMER_NAMES[name].strategy} now; {FORMER_NAMES[name].advice}")
    declared = load_named("paceline.strategies", "STRATEGY", Strategy, name, (*FOLDERS, UNLISTED))
    return declared or choose(name, strategies(), "strategy")


def strategy_of_stored(name: str) -> Strategy | None:
    """The strategy of a stored run: under its former name the one that it is a layout of; None where it is gone."""
    return strategies().get(FORMER_NAMES[name].strategy if name in FORMER_NAMES else name)


def baseline(framework: str) -> Strategy:
    """The strategy that trains on one worker of a framework."""
    return next(candidate for candidate in _of(framework) if candidate.family == "single")


def usual_on_several_devices(framework: str) -> Strategy:
    """The strategy that most people use on several devices of a framework."""
    return next(candidate for candidate in _of(framework) if candidate.traits.usual_on_several_devices)


def _of(framework: str) -> list[Strategy]:
    return [chosen for chosen in strategies().values() if chosen.framework == framework]


__all__ = ["Strategy", "baseline", "strategies", "strategy", "strategy_of_stored", "usual_on_several_devices"]
