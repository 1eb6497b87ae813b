"""The learning rate of another batch than the one it was chosen for.

Linear for SGD, with a warm-up (Goyal et al., "Accurate, Large Minibatch SGD", 2017); by the square root for Adam and
Adagrad (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022).
"""

from math import sqrt

from paceline.recipe import Optimizer
from paceline.spec import DEFAULT_GLOBAL_BATCH

# Epochs over which the rate rises, as Goyal et al. have it.
WARM_UP_EPOCHS = 5
# Of a training whose length nobody says, at most: a tenth of it, as is usual for transformers.
WARM_UP_SHARE = 0.1
# L-BFGS has no such rule.
RULES = {"sgd": "linear", "adam": "square root", "adamw": "square root", "adagrad": "square root"}


def scaled(settings: Optimizer, batch: int, steps_per_epoch: int, epochs: int) -> Optimizer:
    """The optimizer for a batch, where its rate was chosen for a usual one; warmed up where the batch is larger."""
    times = batch / DEFAULT_GLOBAL_BATCH
    if times == 1 or settings.name not in RULES:
        return settings
    factor = times if RULES[settings.name] == "linear" else sqrt(times)
    changes: dict[str, float | int] = {"lr": float(f"{settings.lr * factor:.6g}")}
    if times > 1 and not settings.warmup_steps:
        share = min(WARM_UP_EPOCHS * steps_per_epoch, int(WARM_UP_SHARE * steps_per_epoch * epochs))
        changes["warmup_steps"] = max(1, share)
    return settings.model_copy(update=changes)


def learning_rate_sentence(settings: Optimizer, batch: int) -> str | None:
    """The rule for a batch in words; None where the batch is the usual one or no rule is known."""
    after = scaled(settings, batch, 1, 1)
    if after == settings:
        return None
    rule = RULES[settings.name]
    warm_up = f", warmed up over the first steps (at most {WARM_UP_EPOCHS} epochs)" if after.warmup_steps else ""
    return (
        f"Learning rate: {after.lr:g}{warm_up}, if {settings.lr:g} is right for a batch of {DEFAULT_GLOBAL_BATCH}: "
        f"{settings.name} follows the batch by the {rule} rule. Look at the loss of the first epoch before trusting it."
    )
