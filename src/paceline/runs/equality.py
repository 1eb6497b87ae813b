"""Findings on layers and losses with which several workers do not train as one does, and what restores it."""

from paceline.contract.user_model_facts import UserModelFacts
from paceline.record import Finding
from paceline.spec import RunSpec
from paceline.strategies import Strategy, strategies, strategy


def equality_findings(spec: RunSpec, facts: UserModelFacts) -> list[Finding]:
    """Findings on a run whose batches are computed in parts; none where its strategy promises no equality."""
    chosen = strategy(spec.strategy)
    if not chosen.synchronous:
        return []
    return [*_batch_norm(spec, chosen, facts), *_dropout(spec, chosen, facts), *_loss(spec, chosen, facts)]


def batch_parts(spec: RunSpec, chosen: Strategy) -> int:
    """In how many parts a global batch goes through the model, each with statistics of its own."""
    if chosen.traits.batch_parts is not None:
        return chosen.traits.batch_parts(spec)
    return chosen.traits.replicas(spec) * spec.accumulation


def _batch_norm(spec: RunSpec, chosen: Strategy, facts: UserModelFacts) -> list[Finding]:
    parts = spec.accumulation if spec.batch_norm == "synchronised" else batch_parts(spec, chosen)
    if not facts.batch_norms or parts == 1:
        return []
    several = f" and {len(facts.batch_norms) - 1} more" if len(facts.batch_norms) > 1 else ""
    text = (
        f"batch norms ({facts.batch_norms[0]}{several}) take their statistics from "
        f"{spec.samples_per_step // parts} of the {spec.samples_per_step} samples of a step: "
        f"losses are not those of one worker"
    )
    if spec.batch_norm == "synchronised":
        hint = "each pass of a step has statistics of its own: leave accumulation out, or use norms of groups or layers"
    else:
        keras = "use BatchNormalization(synchronized=True), or " if facts.framework == "keras" else ""
        offered = keras or _offered("batch_norm", "synchronised", chosen)
        hint = f"{_in_one_pass(spec, chosen) or offered}use norms of groups or layers"
    return [Finding(code="local_batch_norm", text=text, hint=hint)]


def _dropout(spec: RunSpec, chosen: Strategy, facts: UserModelFacts) -> list[Finding]:
    if not facts.draws or spec.dropout == "by-sample" or batch_parts(spec, chosen) == 1:
        return []
    one_pass = _in_one_pass(spec, chosen)
    who, whose = ("pass of a step", "a single pass") if one_pass else ("worker", "one worker")
    text = f"dropout is active and each {who} draws its own: losses differ from those of {whose} by chance"
    offered = _offered("dropout", "by-sample", chosen) if facts.draws_by_sample else one_pass
    return [Finding(code="dropout_by_worker", text=text, hint=f"{offered}set it to 0 to compare losses")]


def _loss(spec: RunSpec, chosen: Strategy, facts: UserModelFacts) -> list[Finding]:
    if not facts.weighs_samples or batch_parts(spec, chosen) == 1:
        return []
    text = (
        f"the loss of {spec.workload} is not the mean of the losses of its samples: some weigh more than others, such "
        f"as those with more tokens that count, and the mean over workers or passes is not that of the whole batch"
    )
    hint = (
        f"{_in_one_pass(spec, chosen)}give a function loss(outputs, targets) that takes the mean in each sample first"
    )
    return [Finding(code="samples_weigh_unequally", text=text, hint=hint)]


def _in_one_pass(spec: RunSpec, chosen: Strategy) -> str:
    """What restores equality where nothing but accumulation takes a batch apart."""
    whole = spec.model_copy(update={"accumulation": 1})
    return "leave accumulation out, or " if batch_parts(whole, chosen) == 1 else ""


def _offered(field: str, value: str, chosen: Strategy) -> str:
    """How the field is set, where the strategy or others for such models heed it."""
    flag = f"--{field.replace('_', '-')} {value}"
    if field in chosen.needs.heeds:
        return f"use {flag}, or "
    alike = [other for other in strategies().values() if other.trains == chosen.trains]
    others = [other.name for other in alike if field in other.needs.heeds and other.needs.fixed_workers is None]
    return f"use {flag} with {', '.join(others)}, or " if others else ""
