"""Trial runs ─► what the software of each strategy takes beside computing and sending."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.calibrate.trials import TrialModel
from paceline.costs.footprint import ModelFacts, RankFootprint
from paceline.predict.measured import MeasuredStep, peak_above_framework
from paceline.predict.prediction import Prediction, Predictor
from paceline.predict.question import data_bytes
from paceline.predict.step_inputs import Parts
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems.hardware import Hardware, StrategyOverhead


@dataclass(frozen=True)
class MeasuredOverhead:
    """A strategy on one model: measured and predicted time, and how much each second of overhead would add."""

    step: MeasuredStep
    predicted: Prediction
    # CPU seconds of all processes beyond the prediction, and those of computation that is misjudged, which are apart.
    beyond_seconds: float
    misjudged_seconds: float
    per_message: float
    per_byte: float
    # The same of the wall clock, for waiting.
    per_wait: float
    per_long_wait: float

    @property
    def idle_seconds(self) -> float:
        """Seconds by the wall clock beyond the prediction in which no process computed."""
        spent = (max(0.0, self.beyond_seconds) + self.misjudged_seconds) / self.predicted.spec.workers
        return self.step.wall_seconds - self.predicted.parts.step - spent


@dataclass(frozen=True)
class MeasuredMemory:
    """What a strategy held beyond the prediction, the size of the model, and the activations of a worker."""

    beyond_bytes: float
    parameter_bytes: float
    activation_bytes: float
    # The digest of the workload that is calibrated with; None for the small models.
    digest: str | None = None


def strategy_overheads(hardware: Hardware, trials: Sequence[TrialModel]) -> tuple[StrategyOverhead, ...]:
    """The overheads of each strategy that was run."""
    overheads: dict[str, list[MeasuredOverhead]] = {}
    memory: dict[str, list[MeasuredMemory]] = {}
    for trial in trials:
        facts, single = trial.facts, trial.alone.spec
        predictor = Predictor(hardware, facts, single.samples_per_step, data_bytes=data_bytes(single))
        predicted = predictor.predict(single)
        # Where the model's own computation or memory is misjudged, that is not the strategy's.
        misjudged = trial.alone.step.cpu_seconds / predicted.parts.cpu_seconds
        alone = 0.0 if trial.is_workload else _beyond_bytes(trial.alone.record, predicted) / _passing(single, facts)
        for name, run in trial.by_strategies.items():
            beyond = _beyond_bytes(run.record, predictor.predict(run.spec)) - alone * _passing(run.spec, facts)
            kept = _worker(run.spec, facts).activation_bytes
            digest = predictor.digest if trial.is_workload else None
            memory.setdefault(name, []).append(MeasuredMemory(beyond, facts.parameter_bytes, kept, digest))
            overheads.setdefault(name, []).append(_measured(run.spec, run.step, predictor, misjudged))
    return tuple(_overhead(name, measured, memory[name]) for name, measured in overheads.items())


def _measured(spec: RunSpec, step: MeasuredStep, predictor: Predictor, misjudged: float) -> MeasuredOverhead:
    predicted = predictor.predict(spec)
    cpu = predicted.parts.cpu_seconds
    misjudged_seconds = predicted.parts.compute * spec.workers * (misjudged - 1)
    # What a prediction grows by is proportional to each cost, so one second of it tells by how much.
    per_message, per_byte = (
        _with_a_second(predictor, spec, name).cpu_seconds - cpu
        for name in ("seconds_per_message", "seconds_per_parameter_byte")
    )
    per_wait, per_long_wait = (
        _with_a_second(predictor, spec, name).step - predicted.parts.step
        for name in ("waiting_per_message", "waiting_per_long_message")
    )
    beyond_seconds = step.cpu_seconds - cpu - misjudged_seconds
    return MeasuredOverhead(
        step, predicted, beyond_seconds, misjudged_seconds, per_message, per_byte, per_wait, per_long_wait
    )


def _beyond_bytes(record: Record, predicted: Prediction) -> float:
    return (peak_above_framework(record) or 0.0) - predicted.memory_bytes.value


def _passing(spec: RunSpec, facts: ModelFacts) -> float:
    """Gradient and activation bytes of a worker, by which misjudged memory is scaled."""
    worker = _worker(spec, facts)
    return worker.gradient_bytes + worker.activation_bytes


def _worker(spec: RunSpec, facts: ModelFacts) -> RankFootprint:
    return strategy(spec.strategy).footprint(spec, facts).groups[0]


def _with_a_second(predictor: Predictor, spec: RunSpec, name: str) -> Parts:
    """The parts of a step if this overhead were one second."""
    costs = {"seconds_per_message": 0.0, "held_bytes": 0.0, name: 1.0}
    overhead = StrategyOverhead.model_validate({"strategy": spec.strategy, **costs})
    calibration = predictor.hardware.calibration
    assert calibration is not None
    with_overhead = calibration.model_copy(update={"overheads": (overhead,)})
    hardware = predictor.hardware.model_copy(update={"calibration": with_overhead})
    changed = Predictor(hardware, predictor.model, predictor.samples_per_epoch, data_bytes=predictor.data_bytes)
    return changed.predict(spec).parts


def _overhead(name: str, overheads: Sequence[MeasuredOverhead], memory: Sequence[MeasuredMemory]) -> StrategyOverhead:
    per_message, per_byte = fitted(
        [(row.per_message, row.per_byte, row.beyond_seconds, row.step.cpu_seconds) for row in overheads]
    )
    waiting, long = _waiting(overheads)
    # Where a strategy divides none of the small models over the cores, only what it held of the workload is known.
    least, *larger = [row for row in memory if row.digest is None] or [MeasuredMemory(0.0, 0.0, 0.0)]
    grown = [(row.beyond_bytes - least.beyond_bytes) / (row.parameter_bytes - least.parameter_bytes) for row in larger]
    # What an allocator keeps is chance: the middle of the models, not one that happens to need little or much.
    per_byte_held = max(0.0, median(grown)) if grown else 0.0
    return StrategyOverhead(
        strategy=name, seconds_per_message=per_message, seconds_per_parameter_byte=per_byte,
        waiting_per_message=waiting, waiting_per_long_message=long, held_bytes=least.beyond_bytes,
        held_per_parameter_byte=per_byte_held,
        held_per_activation_byte={
            row.digest: (row.beyond_bytes - least.beyond_bytes - per_byte_held * row.parameter_bytes)
            / row.activation_bytes
            for row in memory
            if row.digest is not None
        },
    )  # fmt: skip


def fitted(sums: Sequence[tuple[float, float, float, float]]) -> tuple[float, float]:
    """Costs (x, y), none below zero, that fit sums a * x + b * y = c best, each error counted as a share of its d."""
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


def _waiting(overheads: Sequence[MeasuredOverhead]) -> tuple[float, float]:
    """Wake-up seconds per message, and per long message: wall clock in which no process computed."""
    undisturbed = [row for row in overheads if not row.step.disturbed and row.per_wait]
    return fitted([(row.per_wait, row.per_long_wait, row.idle_seconds, row.step.wall_seconds) for row in undisturbed])
