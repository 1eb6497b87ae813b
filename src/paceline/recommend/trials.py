"""Runs the best candidates for real (short, interleaved) and ranks them again by the measurements."""

from dataclasses import replace

from paceline.errors import SpecError
from paceline.execute import Listener, execute
from paceline.plan import Plan, PlannedRun, complete
from paceline.predict.measured import measured_step
from paceline.recommend.answer import Answer, Candidate, with_measurements
from paceline.spec import RunSpec
from paceline.store import Store

STUDY = "recommend"
REPEATS, EPOCHS = 2, 4
STEPS_OF_AN_EPOCH = 8


def try_best(answer: Answer, count: int, store: Store, listener: Listener) -> Answer:
    """Runs the `count` best candidates here; the answer then uses the measured values."""
    if answer.objective.name not in ("throughput", "time-to-accuracy"):
        raise SpecError(f"--measure ranks by time, and the objective is {answer.objective.name}; leave one of them out")
    comparable = [candidate for candidate in answer.ranked if candidate.caveat is None]
    chosen = {_short(candidate.spec).key(): candidate for candidate in comparable[:count]}
    runs = _interleaved([_short(candidate.spec) for candidate in chosen.values()])
    outcome = execute(Plan(STUDY, runs, (), 0, tuple(chosen)), store, listener)
    if outcome.interrupted:
        raise KeyboardInterrupt
    records = [record for record in store.records(STUDY) if record.ok and record.repeat < REPEATS]
    values = []
    for key, candidate in chosen.items():
        repeats = [record for record in records if record.key == key]
        steps = [step.wall_seconds for record in repeats if (step := measured_step(record)) is not None]
        if steps and repeats[-1].id is not None:
            # Other load only ever makes a run longer.
            values.append((candidate.spec, _value(candidate, answer, min(steps)), repeats[-1].id))
    return with_measurements(answer, values, sum(outcome.counts.values()))


def _interleaved(specs: list[RunSpec]) -> tuple[PlannedRun, ...]:
    """The runs in rounds of alternating direction, so that slow changes of the machine affect all alike."""
    rounds = [[PlannedRun(spec, repeat) for spec in specs] for repeat in range(REPEATS)]
    return tuple(run for repeat, runs in enumerate(rounds) for run in (reversed(runs) if repeat % 2 else runs))


def _short(spec: RunSpec) -> RunSpec:
    """The run cut to a few steps."""
    fields = {"epochs": EPOCHS, "steps": None, "train_samples": spec.samples_per_step * STEPS_OF_AN_EPOCH}
    return complete(spec.model_copy(update=fields))


def _value(candidate: Candidate, answer: Answer, step_seconds: float) -> float:
    """The measured value in the objective's unit."""
    parts = replace(candidate.prediction.parts, compute=step_seconds, exposed=0.0, bubble=0.0, waiting=0.0)
    return answer.objective.of(replace(candidate.prediction, parts=parts)).value
