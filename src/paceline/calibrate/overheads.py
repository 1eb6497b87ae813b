"""What strategies take beside computing and sending: from small models that little else is left of, and the user's."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.calibrate.trials import Tried
from paceline.costs.footprint import ModelFacts, RankFootprint
from paceline.predict.measured import MeasuredStep, peak_above_framework
from paceline.predict.prediction import Prediction, Predictor
from paceline.predict.question import data_bytes
from paceline.predict.timeline import Parts
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems.hardware import Hardware, StrategyOverhead


@dataclass(frozen=True)
class Timed:
    """A strategy on one of the models: what it took, what is predicted, and what a second of each cost adds to that."""

    step: MeasuredStep
    predicted: Prediction
    # CPU seconds beyond the prediction, of all processes, those of computation that is misjudged aside.
    beyond: float
    misjudged: float
    per_message: float
    per_byte: float
    # The same of the wall clock, for waiting.
    per_wait: float
    per_long_wait: float

    @property
    def late(self) -> float:
        """Seconds by the wall clock that no process computed in, beyond the prediction."""
        spent = (max(0.0, self.beyond) + self.misjudged) / self.predicted.spec.workers
        return self.step.wall_seconds - self.predicted.parts.step - spent


@dataclass(frozen=True)
class Held:
    """What a strategy held beyond the prediction, the size of the model, and the activations of a worker."""

    beyond: float
    parameter_bytes: float
    activation_bytes: float
    # Of a model that it is kept for by itself.
    digest: str | None = None


def strategy_overheads(hardware: Hardware, tried: Sequence[Tried]) -> tuple[StrategyOverhead, ...]:
    """Of each strategy that was tried."""
    timed: dict[str, list[Timed]] = {}
    held: dict[str, list[Held]] = {}
    for one in tried:
        facts, single = one.facts, one.alone.spec
        predictor = Predictor(hardware, facts, single.samples_per_step, data_bytes=data_bytes(single))
        predicted = predictor.predict(single)
        # Where the model's own computation or memory is misjudged, that is not the strategy's.
        misjudged = one.alone.step.cpu_seconds / predicted.parts.cpu_seconds
        alone_held = 0.0 if one.own else _held_beyond(one.alone.record, predicted) / _passed(single, facts)
        for name, ran in one.by_strategies.items():
            beyond = _held_beyond(ran.record, predictor.predict(ran.spec)) - alone_held * _passed(ran.spec, facts)
            kept = _worker(ran.spec, facts).activation_bytes
            digest = predictor.digest if one.own else None
            held.setdefault(name, []).append(Held(beyond, facts.parameter_bytes, kept, digest))
            timed.setdefault(name, []).append(_timed(ran.spec, ran.step, predictor, misjudged))
    return tuple(_overhead(name, own, held[name]) for name, own in timed.items())


def _timed(spec: RunSpec, step: MeasuredStep, predictor: Predictor, misjudged: float) -> Timed:
    predicted = predictor.predict(spec)
    cpu = predicted.parts.cpu_seconds
    computed = predicted.parts.compute * spec.workers * (misjudged - 1)
    # What a prediction grows by is proportional to each cost, so one second of it tells by how much.
    handled, touched = (
        _with_a_second(predictor, spec, name).cpu_seconds - cpu
        for name in ("seconds_per_message", "seconds_per_parameter_byte")
    )
    waited, long = (
        _with_a_second(predictor, spec, name).step - predicted.parts.step
        for name in ("waiting_per_message", "waiting_per_long_message")
    )
    return Timed(step, predicted, step.cpu_seconds - cpu - computed, computed, handled, touched, waited, long)


def _held_beyond(record: Record, predicted: Prediction) -> float:
    return (peak_above_framework(record) or 0.0) - predicted.memory_bytes.value


def _passed(spec: RunSpec, facts: ModelFacts) -> float:
    """Gradients and activations of a worker: who has a part of them has a part of what is misjudged."""
    worker = _worker(spec, facts)
    return worker.gradient_bytes + worker.activation_bytes


def _worker(spec: RunSpec, facts: ModelFacts) -> RankFootprint:
    return strategy(spec.strategy).footprint(spec, facts).groups[0]


def _with_a_second(predictor: Predictor, spec: RunSpec, name: str) -> Parts:
    """The parts of a step if this cost were one second."""
    costs = {"seconds_per_message": 0.0, "held_bytes": 0.0, name: 1.0}
    overhead = StrategyOverhead.model_validate({"strategy": spec.strategy, **costs})
    calibration = predictor.hardware.calibration
    assert calibration is not None
    known = calibration.model_copy(update={"overheads": (overhead,)})
    hardware = predictor.hardware.model_copy(update={"calibration": known})
    anew = Predictor(hardware, predictor.model, predictor.samples_per_epoch, data_bytes=predictor.data_bytes)
    return anew.predict(spec).parts


def _overhead(name: str, timed: Sequence[Timed], held: Sequence[Held]) -> StrategyOverhead:
    per_message, per_byte = fitted([(one.per_message, one.per_byte, one.beyond, one.step.cpu_seconds) for one in timed])
    waiting, long = _waiting(timed)
    # Where a strategy divides none of the small models over the cores, there is only what it held of the user's.
    least, *more = [one for one in held if one.digest is None] or [Held(0.0, 0.0, 0.0)]
    grown = [(one.beyond - least.beyond) / (one.parameter_bytes - least.parameter_bytes) for one in more]
    # What an allocator keeps is chance: the middle of the models, not one that happens to need little or much.
    per_byte_held = max(0.0, median(grown)) if grown else 0.0
    return StrategyOverhead(
        strategy=name, seconds_per_message=per_message, seconds_per_parameter_byte=per_byte,
        waiting_per_message=waiting, waiting_per_long_message=long, held_bytes=least.beyond,
        held_per_parameter_byte=per_byte_held,
        held_per_activation_byte={
            one.digest: (one.beyond - least.beyond - per_byte_held * one.parameter_bytes) / one.activation_bytes
            for one in held
            if one.digest is not None
        },
    )  # fmt: skip


def fitted(sums: Sequence[tuple[float, float, float, float]]) -> tuple[float, float]:
    """Both costs from sums of them, a * x + b * y = c each, with an error counted as a share of d; none below zero."""
    if not sums:
        return 0.0, 0.0
    import numpy as np
    from scipy.optimize import nnls

    rows = np.array(sums)
    amounts, scale = rows[:, :2] / rows[:, 3:], np.abs(rows[:, :2] / rows[:, 3:]).max(axis=0)
    scale[scale == 0] = 1.0
    costs, _ = nnls(amounts / scale, rows[:, 2] / rows[:, 3])
    per_message, per_byte = (float(cost) for cost in costs / scale)
    return per_message, per_byte


def _waiting(timed: Sequence[Timed]) -> tuple[float, float]:
    """For each message, and for each long one beside: wall clock that no process computed in."""
    calm = [one for one in timed if not one.step.disturbed and one.per_wait]
    return fitted([(one.per_wait, one.per_long_wait, one.late, one.step.wall_seconds) for one in calm])
