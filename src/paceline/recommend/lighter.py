"""The same run with less in memory at a time, where it does not fit: more passes of fewer samples, or recomputation."""

from collections.abc import Iterator

from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.units import format_bytes


def predict_fitting(question: Question, spec: RunSpec) -> tuple[list[Prediction], str | None]:
    """The run predicted, or lighter forms of it where it does not fit; and why it cannot be made as it is, if so."""
    why_not = question.why_not(spec)
    if why_not is not None:
        return [], why_not
    predicted = _unless_too_large(question, spec)
    if isinstance(predicted, Prediction):
        return [predicted], None
    return list(lighter(question, spec)), predicted


def lighter(question: Question, spec: RunSpec) -> Iterator[Prediction]:
    """Of each way to recompute, the run with the fewest passes that fits; fields that the question fixes stay.

    More passes of smaller parts take longer, and so does computing activations again: which of them costs less, a
    prediction tells.
    """
    heeds = strategy(spec.strategy).needs.heeds
    kinds = ["full"] if "recompute" in heeds and spec.recompute == "none" and _is_open(question, "recompute") else []
    for kind in (spec.recompute, *kinds):
        for passes in _pass_counts(question, spec) if "accumulation" in heeds else (spec.accumulation,):
            tried = spec.model_copy(update={"recompute": kind, "accumulation": passes})
            if tried != spec and question.why_not(tried) is None:
                predicted = _unless_too_large(question, tried)
                if isinstance(predicted, Prediction):
                    yield predicted
                    break


def _unless_too_large(question: Question, spec: RunSpec) -> Prediction | str:
    """The prediction, or why a worker has not the memory: that is known before any time is."""
    footprint = strategy(spec.strategy).footprint(spec, question.facts)
    needed, limit = question.predictor.memory(spec, footprint)
    if needed.value > limit:
        return f"a worker would hold {format_bytes(needed.value)} and has {format_bytes(limit)}"
    return question.predictor.predict(spec, footprint)


def _pass_counts(question: Question, spec: RunSpec) -> Iterator[int]:
    """Twice as many passes each time, as long as each has a sample of every copy."""
    passes, most = spec.accumulation, spec.samples_per_step // strategy(spec.strategy).traits.replicas(spec)
    while passes <= most:
        yield passes
        if not _is_open(question, "accumulation"):
            return
        passes *= 2


def _is_open(question: Question, name: str) -> bool:
    return name not in question.settings
