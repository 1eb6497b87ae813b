"""Lighter forms of a run that does not fit in memory: more accumulation passes, or recomputation."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from paceline.costs.footprint import Footprint
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.screen import RECOMPUTATION
from paceline.spec import RunSpec, Scalar
from paceline.strategies import strategy
from paceline.units import format_bytes

# The field that moves shards into the host's memory.
OFFLOAD = "offload"
DEVICES_OF_A_MACHINE = 8
# Predictions of a run, or of other forms of it; and why it cannot be made as it is, if so.
Predicted = tuple[list[Prediction], str | None]


@dataclass(frozen=True)
class _Need:
    """Bytes that a worker of a run holds, and those that it has."""

    spec: RunSpec
    held_bytes: float
    limit_bytes: float

    @property
    def fits(self) -> bool:
        return self.held_bytes <= self.limit_bytes

    def text(self, base: RunSpec) -> str:
        """The need in words, with what differs from the run `base` where it is a lighter form of it."""
        changed = [name for name in ("accumulation", "recompute") if getattr(self.spec, name) != getattr(base, name)]
        words = [f"{name} {getattr(self.spec, name)}" for name in changed]
        words += [f"{name} {value}" for name, value in self.spec.knobs.items() if base.knobs.get(name) != value]
        how = " and ".join(words)
        held = f"{format_bytes(self.held_bytes)}{f' even with {how},' if how else ''}"
        return f"a worker would hold {held} and has {format_bytes(self.limit_bytes)}"


def predict_fitting(question: Question, spec: RunSpec) -> Predicted:
    """The prediction of a run, or of lighter forms of it where it does not fit."""
    return _predict(question, spec, lighten=True)


def predict_as_is(question: Question, spec: RunSpec) -> Predicted:
    """The prediction of a run, if it fits."""
    return _predict(question, spec, lighten=False)


def _predict(question: Question, spec: RunSpec, lighten: bool) -> Predicted:
    why_not = question.why_not(spec)
    footprint = _footprint(question, spec) if why_not is None else None
    if footprint is not None:
        why_not = _beyond_the_host(question, spec, footprint)
    if footprint is None or why_not is not None:
        return [], why_not
    if not _can_hold_state(question, spec, footprint):
        # In a search no peak is worked out, for which a step may have to be traced.
        nearest = _with_offload(question, spec) if lighten else ""
        return [], _without_activations(question, footprint) + nearest
    needs = [_need(question, spec, footprint)]
    if needs[0].fits:
        return [question.predictor.predict(spec, footprint)], None
    if lighten and not _activations_decide(question, spec, footprint):
        return [], _without_activations(question, footprint) + _with_offload(question, spec)
    predictions = list(lighter(question, spec, footprint, needs)) if lighten else []
    if predictions:
        return predictions, needs[0].text(spec)
    lightest = min(needs, key=lambda need: need.held_bytes)
    return [], lightest.text(spec) + _with_offload(question, lightest.spec)


def lighter(
    question: Question, spec: RunSpec, footprint: Footprint, needs: list[_Need] | None = None
) -> Iterator[Prediction]:
    """For each way to recompute, the run with the fewest passes that fits; fields that the question fixes stay.

    What others would need goes into `needs`.

    More passes of smaller parts take longer, and so does computing activations again: which of them costs less, a
    prediction tells. A pipeline makes passes of its own, of which a search tries several numbers.
    """
    needs = [] if needs is None else needs
    if not _activations_decide(question, spec, footprint):
        return
    ways = RECOMPUTATION if _may_change(question, spec, "recompute") else (spec.recompute,)
    several = _may_change(question, spec, "accumulation") and footprint.stages is None
    for way, knobs in product(ways, _knobs_to_try(question, spec)):
        for passes in _pass_counts(spec) if several else (spec.accumulation,):
            candidate = _lighter_run(question, spec, {"recompute": way, "accumulation": passes, "knobs": knobs})
            # With one pass such knobs change nothing.
            same = candidate == spec or (knobs != spec.knobs and passes == 1)
            if same or question.why_not(candidate) is not None:
                continue
            candidate_footprint = _footprint(question, candidate)
            needs.append(_need(question, candidate, candidate_footprint))
            if needs[-1].fits:
                yield question.predictor.predict(candidate, candidate_footprint)
                if passes == spec.accumulation:
                    # To compute more again would only take longer.
                    return
                break
            if not _activations_decide(question, candidate, candidate_footprint):
                break


def _lighter_run(question: Question, spec: RunSpec, changed: dict[str, object]) -> RunSpec:
    """The run with these fields; compiled where it was, if it still can be, and else as such runs usually are."""
    candidate = spec.model_copy(update=changed)
    if spec.execution == "compiled" and question.execution is None and question.why_not(candidate) is None:
        return candidate
    return question.as_usual(candidate.model_copy(update={"execution": question.base.execution}))


def may_be_lighter(question: Question, name: str) -> bool:
    """Whether a strategy has knobs with which steps of several passes hold less, and the question leaves them open."""
    knobs = strategy(name).traits.lighter_with
    return bool(knobs) and not knobs.keys() & question.knobs.keys()


def _knobs_to_try(question: Question, spec: RunSpec) -> Iterator[dict[str, Scalar]]:
    yield dict(spec.knobs)
    if may_be_lighter(question, spec.strategy):
        yield {**spec.knobs, **strategy(spec.strategy).traits.lighter_with}


def _footprint(question: Question, spec: RunSpec) -> Footprint:
    return strategy(spec.strategy).footprint(spec, question.facts)


def _need(question: Question, spec: RunSpec, footprint: Footprint) -> _Need:
    """What a worker needs: that is known before any time is."""
    needed, limit = question.predictor.memory(spec, footprint)
    return _Need(spec, needed.value, limit)


def _activations_decide(question: Question, spec: RunSpec, footprint: Footprint) -> bool:
    """Whether the run could fit if workers kept no activations; shards may be in the host's memory."""
    heaviest = footprint.heaviest
    elsewhere = 2 * heaviest.parameter_bytes + heaviest.optimizer_bytes if spec.offload else 0.0
    return heaviest.held_bytes - heaviest.activation_bytes - elsewhere <= question.predictor.memory_limit


def _with_offload(question: Question, spec: RunSpec) -> str:
    """What would be left on the device with shards in the host's memory, where that would fit; else nothing."""
    if spec.offload or OFFLOAD not in strategy(spec.strategy).needs.heeds:
        return ""
    moved = spec.model_copy(update={OFFLOAD: True})
    if question.why_not(moved) is not None:
        return ""
    footprint = _footprint(question, moved)
    if _beyond_the_host(question, moved, footprint) is not None:
        return ""
    need = _need(question, moved, footprint)
    return f"; with offload it would hold {format_bytes(need.held_bytes)}" if need.fits else ""


def host_bytes(question: Question, spec: RunSpec, footprint: Footprint) -> float:
    """Bytes of parameters, gradients and optimizer state that wait in the memory of one node's host."""
    heaviest = footprint.heaviest
    each = 2 * heaviest.parameter_bytes + heaviest.optimizer_bytes
    return each * min(spec.workers, question.hardware.node_devices) if spec.offload else 0.0


def _beyond_the_host(question: Question, spec: RunSpec, footprint: Footprint) -> str | None:
    """Why a host cannot keep what waits there, if so."""
    limit, waiting = host_limit(question, spec), host_bytes(question, spec, footprint)
    if limit is None or waiting <= limit:
        return None
    return f"with offload {format_bytes(waiting)} would wait in the host's memory, which is {format_bytes(limit)}"


def host_limit(question: Question, spec: RunSpec) -> float | None:
    """Bytes that the host of a node has for the run; nodes of many devices are several machines with one link."""
    hardware, memory = question.hardware, question.hardware.host_memory_bytes
    devices = max(min(spec.workers, hardware.node_devices), min(DEVICES_OF_A_MACHINE, hardware.node_devices))
    return memory.value * devices / hardware.node_devices if memory else None


def _can_hold_state(question: Question, spec: RunSpec, footprint: Footprint) -> bool:
    """Whether parameters and optimizer state, which are there at all times, leave any room."""
    state = max(group.parameter_bytes + group.optimizer_bytes for group in footprint.groups)
    return spec.offload or state <= question.predictor.memory_limit


def _without_activations(question: Question, footprint: Footprint) -> str:
    """Why no other batch would help."""
    held = max(group.held_bytes - group.activation_bytes for group in footprint.groups)
    limit = format_bytes(question.predictor.memory_limit - question.hardware.device.reserved_bytes.value)
    return f"a worker would hold {format_bytes(held)} of parameters, gradients and optimizer state, and has {limit}"


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
