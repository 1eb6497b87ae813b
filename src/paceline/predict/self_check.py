"""Before extrapolating: whether the prediction holds for what was measured here on one worker."""

from pathlib import Path

from paceline.predict.measured import measured_step
from paceline.predict.question import Question
from paceline.record import Record
from paceline.store import Store
from paceline.strategies import strategies
from paceline.systems.local import local_system
from paceline.user_input.paths import is_file

# Beyond this a prediction is not to be extrapolated without a word.
LARGEST_ERROR = 0.10


def self_check(question: Question, db: Path) -> str | None:
    """A warning if steps measured on one worker differ from the prediction by more than 10 %, else None."""
    calibration = question.hardware.calibration
    if calibration is None or calibration.machine != local_system().cpu or not is_file(db):
        return None
    with Store.open_existing(db) as store:
        records = [record for record in store.records() if _is_one_worker_of(record, question)]
    errors: dict[tuple[str, int], list[tuple[float, Record]]] = {}
    for record in records:
        if (error := _error(record, question)) is not None:
            errors.setdefault((record.spec.strategy, record.spec.samples_per_step), []).append((error, record))
    if not errors:
        return None
    error, record = max(map(_middle, errors.values()), key=lambda item: abs(item[0]))
    if abs(error) <= LARGEST_ERROR:
        return None
    way = "longer" if error > 0 else "shorter"
    return (
        f"self-check: a step of {record.spec.strategy} on one worker (run {record.id}) is predicted {abs(error):.0%} "
        f"{way} than it was measured; calibrate again on a quiet machine before trusting what follows "
        f"(paceline calibrate --workload {record.spec.workload})"
    )


def _middle(repeats: list[tuple[float, Record]]) -> tuple[float, Record]:
    """The median of repeats of the same step: one disturbed run is no reason for doubt."""
    return sorted(repeats, key=lambda item: item[0])[len(repeats) // 2]


def _is_one_worker_of(record: Record, question: Question) -> bool:
    base, spec = question.base, record.spec
    chosen = strategies().get(spec.strategy)
    same = (spec.workload, spec.options, spec.precision, spec.device, spec.optimizer)
    of_one_text = (spec.model and spec.model.digest) == (base.model and base.model.digest)
    return (
        record.ok and of_one_text and spec.workers == 1 and spec.is_plain and chosen is not None
        and chosen.family == "single" and spec.cores_per_worker == 1 and spec.execution == "eager"
        and same == (base.workload, base.options, base.precision, base.device, base.optimizer)
    )  # fmt: skip


def _error(record: Record, question: Question) -> float | None:
    step = measured_step(record)
    if step is None or not step.cpu_seconds:
        return None
    predicted = question.predictor.predict(record.spec).parts.step
    return predicted / (step.cpu_seconds if step.disturbed else step.wall_seconds) - 1
