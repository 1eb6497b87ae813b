"""Lighter forms of a run that does not fit in memory: more accumulation passes, or recomputation."""

from collections.abc import Iterator

from paceline.costs.footprint import Footprint
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.screen import RECOMPUTATION
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.units import format_bytes

# Predictions of a run, or of other forms of it; and why it cannot be made as it is, if so.
Predicted = tuple[list[Prediction], str | None]


def predict_fitting(question: Question, spec: RunSpec) -> Predicted:
    """The prediction of a run, or of lighter forms of it where it does not fit."""
    return _predict(question, spec, lighten=True)


def predict_as_is(question: Question, spec: RunSpec) -> Predicted:
    """The prediction of a run, if it fits."""
    return _predict(question, spec, lighten=False)


def _predict(question: Question, spec: RunSpec, lighten: bool) -> Predicted:
    why_not = question.why_not(spec)
    if why_not is not None:
        return [], why_not
    footprint = _footprint(question, spec)
    too_large = _too_large(question, spec, footprint)
    if too_large is None:
        return [question.predictor.predict(spec, footprint)], None
    return list(lighter(question, spec, footprint)) if lighten else [], too_large


def lighter(question: Question, spec: RunSpec, footprint: Footprint) -> Iterator[Prediction]:
    """For each way to recompute, the run with the fewest passes that fits; fields that the question fixes stay.

    More passes of smaller parts take longer, and so does computing activations again: which of them costs less, a
    prediction tells. A pipeline makes passes of its own, of which a search tries several numbers.
    """
    if not _activations_decide(question, footprint):
        return
    ways = RECOMPUTATION if _may_change(question, spec, "recompute") else (spec.recompute,)
    several = _may_change(question, spec, "accumulation") and footprint.stages is None
    for way in ways:
        for passes in _pass_counts(spec) if several else (spec.accumulation,):
            lighter_run = {"recompute": way, "accumulation": passes, "execution": question.base.execution}
            tried = question.as_usual(spec.model_copy(update=lighter_run))
            if tried == spec or question.why_not(tried) is not None:
                continue
            found = _footprint(question, tried)
            if _too_large(question, tried, found) is None:
                yield question.predictor.predict(tried, found)
                if passes == spec.accumulation:
                    # To compute more again would only take longer.
                    return
                break
            if not _activations_decide(question, found):
                break


def _footprint(question: Question, spec: RunSpec) -> Footprint:
    return strategy(spec.strategy).footprint(spec, question.facts)


def _too_large(question: Question, spec: RunSpec, footprint: Footprint) -> str | None:
    """Why the run does not fit in a worker's memory, if so; this is known before its time is."""
    needed, limit = question.predictor.memory(spec, footprint)
    if needed.value <= limit:
        return None
    return f"a worker would hold {format_bytes(needed.value)} and has {format_bytes(limit)}"


def _activations_decide(question: Question, footprint: Footprint) -> bool:
    """Whether the run could fit if workers kept no activations."""
    heaviest = footprint.heaviest
    return heaviest.held_bytes - heaviest.activation_bytes <= question.predictor.memory_limit


def _may_change(question: Question, spec: RunSpec, name: str) -> bool:
    """Whether the strategy supports the field and the question does not fix it."""
    usual = RunSpec.model_fields[name].default
    return (
        name in strategy(spec.strategy).needs.heeds and name not in question.settings and getattr(spec, name) == usual
    )


def _pass_counts(spec: RunSpec) -> Iterator[int]:
    """Numbers of passes to try: doubled each time, as long as each pass has a sample for every copy."""
    passes, most = spec.accumulation, spec.samples_per_step // strategy(spec.strategy).traits.replicas(spec)
    while passes <= most:
        yield passes
        passes *= 2
