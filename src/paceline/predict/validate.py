"""Predictions beside what was measured here: the error of each row, and what the intervals are worth."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from statistics import mean, median

from paceline.contract.context import spec_facts
from paceline.errors import ModelError, UserError
from paceline.predict.estimate import NORMAL_90, Estimate
from paceline.predict.measured import CALIBRATION_STUDY, measured_step, peak_above_framework
from paceline.predict.prediction import Prediction, Predictor
from paceline.predict.question import predictor_of
from paceline.predict.simulate import combined
from paceline.record import Record
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import strategies
from paceline.systems.hardware import Hardware

# The clocks that a row may go by.
WALL, CPU = "wall", "CPU"
# Repeats on a machine that other programs use lie this far apart, by CPU seconds.
DISTURBED_DEVIATION = 0.05


@dataclass(frozen=True)
class Row:
    """One configuration: what was predicted and what came, in seconds; the basis says by which clock."""

    spec: RunSpec
    basis: str
    predicted: Estimate
    measured: float
    used_to_calibrate: bool
    records: tuple[int, ...]
    memory_predicted: Estimate
    memory_measured: float | None
    held_predicted: tuple[float, float]
    held_measured: tuple[float, float] | None
    # Where the seconds of computation come from.
    method: str = ""

    @property
    def error(self) -> float:
        """Relative error of the seconds; above zero where the prediction is too long."""
        return self.predicted.value / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured seconds lie in the predicted interval."""
        return self.predicted.low <= self.measured <= self.predicted.high

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory."""
        return self.memory_predicted.value / self.memory_measured - 1 if self.memory_measured else None

    @property
    def memory_inside(self) -> bool:
        """Whether the measured peak lies in the predicted interval."""
        return self.memory_predicted.low <= (self.memory_measured or 0.0) <= self.memory_predicted.high


@dataclass(frozen=True)
class Summary:
    """All rows together."""

    rows: int
    mean_error: float
    worst_error: float
    coverage: float
    # Pairs of rows of one model that are predicted in the order in which they were measured.
    order_kept: float | None
    # The middle of all ratios, minus one: above zero where predictions are too long.
    bias: float = 0.0


@dataclass(frozen=True)
class Validation:
    """Rows of all configurations that could be predicted, and why others could not."""

    rows: list[Row]
    left_out: dict[str, str]


def validate_records(
    records: Iterable[Record],
    hardware: Hardware,
    basis: str | None = None,
    tell: Callable[[str], object] = lambda _text: None,
) -> Validation:
    """One row for each configuration of this system, by the clock that suits it or `basis`.

    `tell` hears how far it is: a model of the user's is built and traced first, which takes seconds.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if _comparable(record, hardware):
            groups.setdefault(record.key, []).append(record)
    predictors: dict[str, Predictor] = {}
    validation = Validation([], {})
    for number, group in enumerate(groups.values(), 1):
        spec = group[0].spec
        tell(f"predicting configuration {number} of {len(groups)}: {spec.workload}")
        try:
            row = _row(group, hardware, predictors, basis)
        except UserError as error:
            validation.left_out[f"{spec.workload} {spec.strategy}"] = str(error)
        else:
            validation.rows.extend([row] if row is not None else [])
    return validation


def _comparable(record: Record, hardware: Hardware) -> bool:
    spec = record.spec
    chosen = strategies().get(spec.strategy)
    return (
        record.ok and spec.is_plain and chosen is not None and chosen.family != "fake"
        and spec.device == hardware.run_device and (spec.slices or spec.workers) == (hardware.slices or spec.workers)
        and ((spec.cores_per_worker == 1 and spec.execution == "eager") or hardware.kind == "cuda")
        and hardware.calibration is not None and record.environment.get("cpu") == hardware.calibration.machine
    )  # fmt: skip


def _row(
    group: Sequence[Record], hardware: Hardware, predictors: dict[str, Predictor], chosen_basis: str | None
) -> Row | None:
    spec = group[0].spec
    steps = [step for record in group if (step := measured_step(record)) is not None]
    if not steps:
        return None
    predictor = _predictor(spec, hardware, predictors)
    prediction = predictor.predict(spec)
    undisturbed = [step for step in steps if not step.disturbed]
    # What a link takes is in no process's CPU seconds.
    basis = chosen_basis or (WALL if undisturbed or spec.link is not None else CPU)
    wall = median(step.wall_seconds for step in undisturbed or steps)
    measured = wall if basis == WALL else median(step.cpu_seconds for step in steps)
    predicted = prediction.step_seconds if basis == WALL else by_cpu(prediction)
    peaks = [peak for record in group if (peak := peak_above_framework(record)) is not None]
    heaviest = strategies()[spec.strategy].footprint(spec, predictor.model).heaviest
    return Row(
        spec, basis, predicted, measured,
        used_to_calibrate=all(record.study == CALIBRATION_STUDY for record in group),
        records=tuple(record.id for record in group if record.id is not None),
        memory_predicted=prediction.memory_bytes, memory_measured=median(peaks) if peaks else None,
        held_predicted=(heaviest.parameter_bytes, heaviest.optimizer_bytes),
        held_measured=_held(group[0], heaviest.parameter_bytes), method=prediction.source,
    )  # fmt: skip


def by_cpu(prediction: Prediction) -> Estimate:
    """CPU seconds of all processes; on a machine that others use they vary more."""
    deviation = combined(prediction.whole_deviation, DISTURBED_DEVIATION)
    return Estimate.around(prediction.parts.cpu_seconds, deviation)


def _predictor(spec: RunSpec, hardware: Hardware, predictors: dict[str, Predictor]) -> Predictor:
    place = spec.model_dump_json(
        include={"workload", "model", "options", "dataset", "input_shape", "classes", "train_samples"}
    )
    if place not in predictors:
        facts = spec_facts(spec) if spec.model is None else probe(spec).model
        if facts is None:
            raise ModelError(f"{spec.workload} is no PyTorch module, and only those can be followed layer by layer")
        predictors[place] = predictor_of(hardware, spec, facts, spec.train_samples or 1)
    return predictors[place]


def _held(record: Record, parameters: float) -> tuple[float, float] | None:
    """Bytes of parameters and optimizer state of the process that is nearest to the heaviest rank of the footprint."""
    tensors = [rank.details["held_bytes"] for rank in record.ranks if "held_bytes" in rank.details]
    if not tensors:
        return None
    nearest = min(tensors, key=lambda rank: abs(rank["parameters"] - parameters))
    return nearest["parameters"], nearest["optimizer"]


def summarise(rows: Sequence[Row]) -> Summary:
    """Mean and worst error, the share inside their intervals, and whether the order is kept."""
    errors = [abs(row.error) for row in rows]
    bias = exp(mean(log(row.predicted.value / row.measured) for row in rows)) - 1
    return Summary(len(rows), mean(errors), max(errors), mean(row.inside for row in rows), order_kept(rows), bias)


def order_kept(rows: Sequence[Row]) -> float | None:
    """Share of pairs of one model and batch whose order was foreseen; of pairs that differ by more than chance."""
    right, pairs = 0, 0
    for first, second in combinations(rows, 2):
        far = abs(first.measured / second.measured - 1) > NORMAL_90 * DISTURBED_DEVIATION
        if _compared_by(first) == _compared_by(second) and far:
            pairs += 1
            right += (first.measured < second.measured) == (first.predicted.value < second.predicted.value)
    return right / pairs if pairs else None


def _compared_by(row: Row) -> tuple[object, ...]:
    return row.spec.workload, row.spec.options, row.spec.samples_per_step, row.basis
