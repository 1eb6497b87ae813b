"""What strategies take beside computing and sending, from runs of small models that little else is left of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, lcm
from statistics import mean

from paceline.errors import UserError
from paceline.footprint import ModelFacts
from paceline.plan import complete, refusal, spec_facts
from paceline.predict.measured import MeasuredStep, measured_step, peak_above_framework
from paceline.predict.prediction import Prediction, Predictor
from paceline.predict.question import data_bytes
from paceline.predict.timeline import Parts
from paceline.record import Record
from paceline.runs.probe import probe
from paceline.spec import RunSpec, Scalar
from paceline.strategies import strategy
from paceline.systems.hardware import Hardware, StrategyOverhead
from paceline.systems.local import System

# One of each kind; others are taken to be like the one whose last word or family they share.
TIMED = ("torch-ddp", "torch-zero", "torch-fsdp", "torch-pipeline", "torch-tensor", "torch-ps-sync")
SINGLE = "torch-single"
BATCH, MICROBATCHES = 64, 16
Run = Callable[[RunSpec, int], Record]


@dataclass(frozen=True)
class Trial:
    """A model to run every strategy on, and for how long."""

    options: dict[str, Scalar]
    epochs: int = 8
    steps: int = 8
    # A run that other programs disturbed is made so often at most; the calmest counts.
    tries: int = 2
    # Or only looked at for what it holds.
    timed: bool = True


# In the first only messages count; the second has parameters enough to fill caches and show what each byte takes. What
# an allocator keeps of one model is chance: for that there is a third.
TRIALS = (
    Trial({"depth": 2, "width": 16}),
    Trial({"depth": 2, "width": 640}, steps=16),
    Trial({"depth": 4, "width": 400}, epochs=4, tries=1, timed=False),
)


@dataclass(frozen=True)
class Timed:
    """A strategy on one of the models: what it took, what is predicted, and what a second of each cost adds to that."""

    step: MeasuredStep
    predicted: Prediction
    # CPU seconds beyond the prediction, of all processes.
    beyond: float
    per_message: float
    per_byte: float
    # The same of the wall clock, for waiting.
    per_wait: float


@dataclass(frozen=True)
class Held:
    """What a strategy held beyond the prediction, and the size of the model."""

    beyond: float
    parameter_bytes: float


def time_overheads(
    hardware: Hardware, system: System, run: Run, say: Callable[[str], None]
) -> tuple[StrategyOverhead, ...]:
    """Of each kind of strategy, with a worker on every core."""
    timed: dict[str, list[Timed]] = {}
    held: dict[str, list[Held]] = {}
    cores = len(system.cores)
    names = [name for name in TIMED if all(_runs(_spec(trial, name, cores, cores), system) for trial in TRIALS)]
    for trial in TRIALS:
        single = _spec(trial, SINGLE, 1, cores)
        facts = spec_facts(single)
        predictor = Predictor(hardware, facts, BATCH, data_bytes=data_bytes(single))
        say(f"{SINGLE}: an mlp of {facts.parameters:,} parameters")
        alone, record = _calmest(single, run, trial.tries)
        # Where the model's own computation or memory is misjudged, that is not the strategy's.
        misjudged = alone.cpu_seconds / predictor.predict(single).parts.cpu_seconds
        alone_held = _held_beyond(record, predictor.predict(single)) / _passed(single, facts)
        for name in names:
            spec = _spec(trial, name, cores, cores)
            say(f"{name}: its own share of a step" if trial.timed else f"{name}: what it holds")
            step, record = _calmest(spec, run, trial.tries)
            beyond = _held_beyond(record, predictor.predict(spec)) - alone_held * _passed(spec, facts)
            held.setdefault(name, []).append(Held(beyond, facts.parameter_bytes))
            if trial.timed:
                timed.setdefault(name, []).append(_timed(spec, step, predictor, misjudged))
    return tuple(_overhead(name, small, large, held[name]) for name, (small, large) in timed.items())


def _batch(cores: int) -> int:
    """At least as many samples as are worth a step, in equal shares and micro-batches for every core."""
    share = lcm(cores, MICROBATCHES)
    return share * ceil(BATCH / share)


def _runs(spec: RunSpec, system: System) -> bool:
    """Not every strategy divides these models over as many workers as there are cores."""
    try:
        return refusal(spec, system, probe) is None
    except UserError:
        return False


def _spec(trial: Trial, name: str, workers: int, cores: int) -> RunSpec:
    batch = _batch(cores)
    return complete(
        RunSpec(
            workload="mlp", options=trial.options, strategy=name, workers=workers, global_batch=batch,
            epochs=trial.epochs, train_samples=batch * trial.steps,
        )
    )  # fmt: skip


def _calmest(spec: RunSpec, run: Run, tries: int) -> tuple[MeasuredStep, Record]:
    best: tuple[MeasuredStep, Record] | None = None
    for turn in range(tries):
        record = run(spec, turn)
        step = measured_step(record)
        assert step is not None
        if best is None or step.cpu_seconds < best[0].cpu_seconds:
            best = step, record
        if not step.disturbed:
            break
    assert best is not None
    return best


def _timed(spec: RunSpec, step: MeasuredStep, predictor: Predictor, misjudged: float) -> Timed:
    predicted = predictor.predict(spec)
    cpu = predicted.parts.cpu_seconds
    computed = predicted.parts.compute * spec.workers * (misjudged - 1)
    # What a prediction grows by is proportional to each cost, so one second of it tells by how much.
    handled, touched, waited = (
        _with_a_second(predictor, spec, name)
        for name in ("seconds_per_message", "seconds_per_parameter_byte", "waiting_per_message")
    )
    return Timed(
        step, predicted, step.cpu_seconds - cpu - computed, handled.cpu_seconds - cpu, touched.cpu_seconds - cpu,
        waited.step - predicted.parts.step,
    )  # fmt: skip


def _held_beyond(record: Record, predicted: Prediction) -> float:
    return (peak_above_framework(record) or 0.0) - predicted.memory_bytes.value


def _passed(spec: RunSpec, facts: ModelFacts) -> float:
    """Gradients and activations of a worker: who has a part of them has a part of what is misjudged."""
    worker = strategy(spec.strategy).footprint(spec, facts).groups[0]
    return worker.gradient_bytes + worker.activation_bytes


def _with_a_second(predictor: Predictor, spec: RunSpec, name: str) -> Parts:
    """The parts of a step if this cost were one second."""
    costs = {"seconds_per_message": 0.0, "held_bytes": 0.0, name: 1.0}
    overhead = StrategyOverhead.model_validate({"strategy": spec.strategy, **costs})
    calibration = predictor.hardware.calibration
    assert calibration is not None
    known = calibration.model_copy(update={"overheads": (overhead,)})
    hardware = predictor.hardware.model_copy(update={"calibration": known})
    return Predictor(hardware, predictor.model, BATCH, data_bytes=predictor.data_bytes).predict(spec).parts


def _overhead(name: str, small: Timed, large: Timed, held: Sequence[Held]) -> StrategyOverhead:
    per_message, per_byte = solved(
        (small.per_message, small.per_byte, small.beyond), (large.per_message, large.per_byte, large.beyond)
    )
    least, *more = held
    growth = mean((one.beyond - least.beyond) / (one.parameter_bytes - least.parameter_bytes) for one in more)
    return StrategyOverhead(
        strategy=name, seconds_per_message=per_message, seconds_per_parameter_byte=per_byte,
        waiting_per_message=_waiting(small), held_bytes=least.beyond, held_per_parameter_byte=max(0.0, growth),
    )  # fmt: skip


def solved(small: tuple[float, float, float], large: tuple[float, float, float]) -> tuple[float, float]:
    """Both costs from two sums of them, a * x + b * y = c each; neither is below zero."""
    (a, b, c), (d, e, f) = small, large
    if not a:
        return 0.0, max(0.0, f / e) if e else 0.0
    share = a * e - b * d
    per_byte = (a * f - c * d) / share if share else 0.0
    per_message = (c - b * per_byte) / a
    if per_byte < 0:
        return max(0.0, c / a), 0.0
    if per_message < 0:
        return 0.0, max(0.0, f / e)
    return per_message, per_byte


def _waiting(small: Timed) -> float:
    """Wall clock of the small model that no process computed in, for each message."""
    if small.step.disturbed or not small.per_wait:
        return 0.0
    spent = max(0.0, small.beyond) / small.predicted.spec.workers
    late = small.step.wall_seconds - small.predicted.parts.step - spent
    return max(0.0, late) / small.per_wait
