"""Why a layout has each of its dimensions: what each does, and what the same devices would do without it."""

from collections.abc import Iterator
from itertools import product

from paceline.layout import DIMENSIONS, Layout
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.lighter import predict_as_is, predict_fitting
from paceline.units import format_bytes, format_percent

# Where devices go that a dimension no longer has: they divide the model, or have copies of it.
INSTEAD = {"shard": "replicate"}
USUALLY_INSTEAD = "shard"
# Steps nearer to each other than that take as long.
ALIKE = 0.01
WHAT_IT_DOES = {
    "replicate": "{size} copies of the model share the batch and sum gradients once per step",
    "shard": "{size} devices divide parameters, gradients and optimizer state of a copy",
    "tensor": "{size} devices{within} split each layer",
    "pipeline": "{size} places in a row hold the layers, and only activations cross between them",
}


def explain_layout(question: Question, pick: Prediction) -> Iterator[str]:
    """A sentence for each dimension above one, and one for recomputed activations."""
    layout = pick.spec.layout
    if layout is None:
        return
    for name in DIMENSIONS:
        size = getattr(layout, name)
        if size > 1:
            within = " of one node" if size * layout.apart(name) <= question.hardware.node_devices else ""
            does = WHAT_IT_DOES.get(name, "{size} devices share it").format(size=size, within=within)
            yield f"{name}={size}: {does}; {_without(question, pick, name)}."
    if pick.spec.recompute != "none":
        kept = pick.spec.model_copy(update={"recompute": "none"})
        outcome = _outcome(pick, *predict_as_is(question, kept))
        yield f"Recompute {pick.spec.recompute}: with all activations kept, {outcome}."


def _without(question: Question, pick: Prediction, name: str) -> str:
    """The run with the devices of one dimension moved to another."""
    assert pick.spec.layout is not None
    sizes = {other: getattr(pick.spec.layout, other) for other in DIMENSIONS}
    instead = INSTEAD.get(name, USUALLY_INSTEAD)
    moved = Layout(**{**sizes, instead: sizes[instead] * sizes[name], name: 1})
    # A dimension may also lie within others, and then has no devices of its own.
    layout = moved if moved.workers == pick.spec.workers else Layout(**{**sizes, name: 1})
    predicted: list[Prediction] = []
    why_not = None
    # Settings of a pipeline may not go with another layout; then its own defaults are tried.
    for knobs, passes in product((pick.spec.knobs, {}), _pass_counts(pick, layout)):
        if not predicted:
            other = pick.spec.model_copy(update={"layout": layout, "knobs": knobs, "accumulation": passes})
            predicted, why_not = predict_fitting(question, other)
    return f"with {layout.text} instead, {_outcome(pick, predicted, why_not)}"


def _pass_counts(pick: Prediction, layout: Layout) -> Iterator[int]:
    """Passes of as many samples on each rank; where there are more data ranks, that is fewer of them."""
    assert pick.spec.layout is not None
    passes = pick.spec.accumulation
    yield max(1, passes * pick.spec.layout.data_ranks // layout.data_ranks)
    # In one pass, unless that does not fit: then as many as needed.
    if passes > 1:
        yield 1


def _outcome(pick: Prediction, predicted: list[Prediction], why_not: str | None) -> str:
    if not predicted:
        return str(why_not)
    best = min(predicted, key=lambda prediction: prediction.parts.step)
    slower = best.parts.step / pick.parts.step - 1
    how = ", ".join(
        f"{name} {getattr(best.spec, name)}"
        for name in ("accumulation", "recompute")
        if getattr(best.spec, name) != getattr(pick.spec, name)
    )
    held = f"a worker would hold {format_bytes(best.memory_bytes.value)}"
    duration = (
        "a step would take as long"
        if abs(slower) <= ALIKE
        else (f"a step would take {format_percent(abs(slower))} {'longer' if slower > 0 else 'less'}")
    )
    return f"{duration}{f' (with {how})' if how else ''} and {held}"
