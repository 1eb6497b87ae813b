"""Runs the best candidates for real (short, interleaved) and ranks them again by the measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.analysis.batches.critical import CriticalBatch, critical_batch_of
from paceline.analysis.rows import summarise
from paceline.errors import SpecError
from paceline.execute import Listener, execute
from paceline.plan import Plan, PlannedRun, complete, refusal
from paceline.predict.measured import MeasuredStep, measured_step
from paceline.recommend.answer import Answer, Candidate, Measurement, with_measurements
from paceline.record import Record
from paceline.runs.probe import probe
from paceline.spec import BASELINE, RunSpec
from paceline.store import Store
from paceline.systems import local_system

STUDY = "recommend"
STEPS_OF_AN_EPOCH = 8
# The run that measures the noise of gradients: its batch, small so that there are many steps, their passes, and epochs.
NOISE_BATCH, NOISE_PASSES, NOISE_EPOCHS = 64, 4, 2
# Each epoch goes through the data so many times: more often where once does not tell the noise from none at all.
NOISE_COPIES = (1, 8)


@dataclass(frozen=True)
class Effort:
    """How often each candidate is run, and for how long."""

    repeats: int
    epochs: int


# As many repeats as a verdict needs; or one look.
THOROUGH, QUICK = Effort(3, 4), Effort(1, 2)


def check_measurable(answer: Answer) -> None:
    """Refuses an objective that a short run does not tell."""
    if answer.objective.name not in ("throughput", "time-to-accuracy"):
        raise SpecError(f"--measure ranks by time, and the objective is {answer.objective.name}; leave one of them out")


def try_best(
    answer: Answer, count: int, store: Store, listener: Listener, effort: Effort = THOROUGH, fresh: bool = False
) -> Answer:
    """Runs the `count` best candidates here; the answer then uses the measured values.

    Runs that an earlier call made are not made again, unless `fresh` is set: after an interruption it goes on.
    """
    check_measurable(answer)
    comparable = [candidate for candidate in answer.ranked if candidate.caveat is None]
    chosen = {_short(candidate.spec, effort).key(): candidate for candidate in comparable[:count]}
    runs = _interleaved([_short(candidate.spec, effort) for candidate in chosen.values()], effort)
    done = set() if fresh else store.done(only_ok=True)
    to_run = tuple(run for run in runs if (run.spec.key(), run.repeat) not in done)
    outcome = execute(Plan(STUDY, to_run, (), len(runs) - len(to_run), tuple(chosen)), store, listener)
    if outcome.interrupted:
        raise KeyboardInterrupt
    records = [record for record in store.records(STUDY) if record.ok and record.repeat < effort.repeats]
    measured = []
    for key, candidate in chosen.items():
        steps = _steps([record for record in records if record.key == key])
        if steps:
            measured.append((candidate.spec, _measurement(candidate, answer, steps)))
    return with_measurements(answer, measured, len(runs))


def measure_noise(answer: Answer, store: Store, listener: Listener) -> CriticalBatch | None:
    """The critical batch by the noise of gradients in a short run on one worker, else in a longer one."""
    critical: CriticalBatch | None = None
    for copies in NOISE_COPIES:
        _run_with_noise(answer, store, listener, copies)
        critical = critical_batch_of(answer.question.base, summarise(store.records()))
        if critical is not None and critical.high is not None:
            break
    return critical


def _run_with_noise(answer: Answer, store: Store, listener: Listener, copies: int) -> None:
    """Makes the run where the model can be trained so and it is not stored yet."""
    base = answer.question.base
    batch = {"global_batch": NOISE_BATCH, "local_batch": None, "accumulation": NOISE_PASSES}
    length = {"epochs": NOISE_EPOCHS, "steps": None, "dataset_copies": copies}
    spec = complete(
        base.model_copy(update={"strategy": BASELINE, "workers": 1, "noise_scale": True, **batch, **length})
    )
    done = (spec.key(), 0) in store.done(only_ok=True)
    if done or refusal(spec, local_system(), probe) is not None:
        return
    if execute(Plan(STUDY, (PlannedRun(spec, 0),), (), 0, (spec.key(),)), store, listener).interrupted:
        raise KeyboardInterrupt


def _steps(records: Sequence[Record]) -> list[tuple[Record, MeasuredStep]]:
    return [(record, step) for record in records if (step := measured_step(record)) is not None]


def _measurement(candidate: Candidate, answer: Answer, steps: Sequence[tuple[Record, MeasuredStep]]) -> Measurement:
    values = tuple(_value(candidate, answer, step.wall_seconds) for _, step in steps)
    best = max(values) if answer.objective.metric.better == "higher" else min(values)
    number = steps[-1][0].id
    assert number is not None
    # Other load only ever makes a run longer.
    return Measurement(values, best, number, disturbed=all(step.disturbed for _, step in steps))


def _interleaved(specs: list[RunSpec], effort: Effort) -> tuple[PlannedRun, ...]:
    """The runs in rounds of alternating direction, so that slow changes of the machine affect all alike."""
    rounds = [[PlannedRun(spec, repeat) for spec in specs] for repeat in range(effort.repeats)]
    return tuple(run for repeat, runs in enumerate(rounds) for run in (reversed(runs) if repeat % 2 else runs))


def _short(spec: RunSpec, effort: Effort) -> RunSpec:
    """The run cut to a few steps."""
    fields = {"epochs": effort.epochs, "steps": None, "train_samples": spec.samples_per_step * STEPS_OF_AN_EPOCH}
    return complete(spec.model_copy(update=fields))


def _value(candidate: Candidate, answer: Answer, step_seconds: float) -> float:
    """The measured value in the objective's unit, with the samples that a larger batch needs more, as predicted."""
    parts = replace(candidate.prediction.parts, compute=step_seconds, exposed=0.0, bubble=0.0, waiting=0.0)
    more_samples = candidate.value.value / answer.objective.of(candidate.prediction).value
    return answer.objective.of(replace(candidate.prediction, parts=parts)).value * more_samples
