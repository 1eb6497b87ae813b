"""The learning rate of another batch than the one it was chosen for.

Linear for SGD, with a warm-up (Goyal et al., "Accurate, Large Minibatch SGD", 2017); by the square root for Adam and
Adagrad (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022).
"""

from dataclasses import dataclass
from math import sqrt

from paceline.analysis.batches.critical import CriticalBatch
from paceline.predict.question import Question
from paceline.recipe import Optimizer
from paceline.spec import DEFAULT_GLOBAL_BATCH, RunSpec
from paceline.workloads.user_model import declared_functions

# Epochs over which the rate rises, as Goyal et al. have it.
WARM_UP_EPOCHS = 5
# Of a training whose length nobody says, at most: a tenth of it, as is usual for transformers.
WARM_UP_SHARE = 0.1
# Fewer steps than this are no warm-up; they are at most half of a short training.
LEAST_WARM_UP_STEPS = 10
# L-BFGS has no such rule.
RULES = {"sgd": "linear", "adam": "square root", "adamw": "square root", "adagrad": "square root"}


@dataclass(frozen=True)
class Anchor:
    """A learning rate and the batch that it is right for, as far as that is known."""

    batch: int
    lr: float
    known: bool = False


def has_own_optimizer(spec: RunSpec) -> bool:
    """Whether the user's file makes the optimizer, so that its rate is not known here."""
    return spec.model is not None and "optimizer" in declared_functions(spec.model)


def with_its_learning_rate(
    spec: RunSpec, question: Question, critical: CriticalBatch | None, steps_per_epoch: int, epochs: int
) -> RunSpec:
    """The run with the learning rate of its batch, and a warm-up where the batch is larger."""
    if has_own_optimizer(spec):
        return spec
    batch = spec.samples_per_step
    optimizer = scaled(spec.optimizer, batch, steps_per_epoch, epochs, anchor_of(question, critical, batch))
    return spec.model_copy(update={"optimizer": optimizer})


def learning_rate_advice(spec: RunSpec, question: Question, critical: CriticalBatch | None) -> str | None:
    """The rule for the batch of a run in words; None where it changes nothing or no rule is known."""
    if not has_own_optimizer(spec):
        batch = spec.samples_per_step
        return learning_rate_sentence(spec.optimizer, batch, anchor_of(question, critical, batch))
    assert spec.model is not None
    return (
        f"Learning rate: that of optimizer() in {spec.model.path.name}, which is taken as it is. For a batch that is k "
        f"times the one it was chosen for, use k times the rate with SGD, the square root of k with Adam or Adagrad, "
        f"and a warm-up."
    )


def anchor_of(question: Question, critical: CriticalBatch | None, batch: int) -> Anchor:
    """From the search of stored runs with this optimizer, else the given rate for the given batch, else a usual one."""
    settings = question.base.optimizer
    searched = critical.searched if critical is not None else None
    alike = searched is not None and searched.optimizer.model_copy(update={"lr": settings.lr}) == settings
    if searched is not None and alike and "lr" not in question.optimizer:
        return Anchor(*searched.nearest_rate(batch), known=True)
    if "lr" in question.optimizer and len(question.global_batches) == 1 and not question.local_batches:
        return Anchor(question.global_batches[0], settings.lr)
    return Anchor(DEFAULT_GLOBAL_BATCH, settings.lr)


def scaled(settings: Optimizer, batch: int, steps_per_epoch: int, epochs: int, anchor: Anchor) -> Optimizer:
    """The optimizer for a batch, where its rate is known for another; warmed up where the batch is larger."""
    times = batch / anchor.batch
    if settings.name not in RULES or (times == 1 and anchor.lr == settings.lr):
        return settings
    factor = times if RULES[settings.name] == "linear" else sqrt(times)
    changes: dict[str, float | int] = {"lr": float(f"{anchor.lr * factor:.6g}")}
    if times > 1 and not settings.warmup_steps:
        total = steps_per_epoch * epochs
        share = min(WARM_UP_EPOCHS * steps_per_epoch, int(WARM_UP_SHARE * total))
        changes["warmup_steps"] = max(1, share, min(LEAST_WARM_UP_STEPS, total // 2))
    return settings.model_copy(update=changes)


def learning_rate_sentence(settings: Optimizer, batch: int, anchor: Anchor) -> str | None:
    """The rule for a batch in words; None where it changes nothing or no rule is known."""
    after = scaled(settings, batch, 1, 1, anchor)
    if after == settings:
        return None
    if anchor.batch == batch:
        return (
            f"Learning rate: {after.lr:.3g}, which took stored runs of batch {batch:,} to the target in fewest steps."
        )
    rule = RULES[settings.name]
    warm_up = f", warmed up over the first steps (at most {WARM_UP_EPOCHS} epochs)" if after.warmup_steps else ""
    known = (
        f"as {anchor.lr:g} took stored runs of batch {anchor.batch:,} to their target in the fewest steps"
        if anchor.known
        else f"if {anchor.lr:g} is right for a batch of {anchor.batch:,}"
    )
    return (
        f"Learning rate: {after.lr:.3g}{warm_up}, {known}: {settings.name} follows the batch by the {rule} rule. Look "
        f"at the loss of the first epoch before trusting it."
    )
