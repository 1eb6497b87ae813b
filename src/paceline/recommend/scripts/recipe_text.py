"""What scripts of every framework say alike of the optimizer: how its rate goes on, and what is decayed."""

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.recommend.scripts.base import Source
from paceline.spec import Optimizer


def recipe_values(source: Source) -> Mapping[str, Any]:
    """What every template is told of the optimizer; nothing where the user's file makes it."""
    settings, is_own = source.spec.optimizer, "optimizer" in source.user_functions
    return {
        "rate_lines": [] if is_own else list(rate_lines(settings)),
        "weight_decay": 0.0 if is_own else settings.weight_decay,
        # Whether a decay changes parameters by itself rather than as a part of their gradients.
        "decay_is_apart": settings.name == "adamw",
        "decays_matrices_only": not is_own and settings.weight_decay_on == "matrices",
    }


def rate_lines(settings: Optimizer) -> Iterator[str]:
    """Statements that set `factor`, what the rate is multiplied by after `done` of `total` steps."""
    if not settings.scheduled:
        return
    warm_up = settings.warmup_steps
    after, whole = (f"max(0, done - {warm_up})", f"max(1, total - {warm_up})") if warm_up else ("done", "total")
    if settings.schedule == "cosine":
        last, half = settings.final_lr, (1 - settings.final_lr) / 2
        yield f"part = {after} / {whole}"
        yield f"factor = {last!r} + {half!r} * (1 + math.cos(math.pi * part))"
    elif settings.schedule == "step":
        yield f"factor = {settings.step_factor!r} ** ({after} // {settings.step_every})"
    if warm_up and settings.schedule == "constant":
        yield f"factor = min(1.0, (done + 1) / {warm_up})"
    elif warm_up:
        yield f"factor *= min(1.0, (done + 1) / {warm_up})"
