"""The best candidates, run for real: short, interleaved, and ranked again by what they did."""

from dataclasses import replace
from statistics import median

from paceline.errors import SpecError
from paceline.execute import Listener, execute, plan_study
from paceline.plan import complete
from paceline.predict.measured import measured_step
from paceline.recommend.answer import Answer, Candidate, with_measurements
from paceline.record import Record
from paceline.spec import RunSpec
from paceline.store import Store
from paceline.study import Study

STUDY = "recommend"
REPEATS, EPOCHS = 2, 4
STEPS_OF_AN_EPOCH = 8


def try_best(answer: Answer, count: int, store: Store, listener: Listener) -> Answer:
    """Runs the `count` best here; the answer then goes by what was measured."""
    if answer.objective.name not in ("throughput", "time-to-accuracy"):
        raise SpecError(f"--measure ranks by time, and the objective is {answer.objective.name}; leave one of them out")
    chosen = [one for one in answer.ranked if one.caveat is None][:count]
    specs = {_short(one.spec).key(): one for one in chosen}
    records: list[Record] = []
    runs = 0
    for repeat in range(REPEATS):
        for one in chosen if repeat % 2 == 0 else list(reversed(chosen)):
            study = _study(one.spec, repeat)
            outcome = execute(plan_study(study, store, fresh=True), store, listener)
            runs += sum(outcome.counts.values())
            if outcome.interrupted:
                raise KeyboardInterrupt
        keys = set(specs)
        records = [record for record in store.records(STUDY) if record.key in keys]
    values = []
    for key, one in specs.items():
        own = [record for record in records if record.key == key and record.ok]
        steps = [step for record in own if (step := measured_step(record)) is not None]
        if steps and own[-1].id is not None:
            values.append((one.spec, _value(one, answer, median(step.wall_seconds for step in steps)), own[-1].id))
    return with_measurements(answer, values, runs)


def _short(spec: RunSpec) -> RunSpec:
    """As it was asked for, for a few steps."""
    fields = {"epochs": EPOCHS, "steps": None, "train_samples": spec.samples_per_step * STEPS_OF_AN_EPOCH}
    return complete(spec.model_copy(update=fields))


def _study(spec: RunSpec, repeat: int) -> Study:
    fields = _short(spec).model_dump(exclude_defaults=True, exclude={"knobs", "optimizer"})
    return Study(name=STUDY, fixed={**fields, "knobs": spec.knobs}, order_seed=repeat)


def _value(one: Candidate, answer: Answer, step_seconds: float) -> float:
    """In the objective's unit."""
    prediction = replace(one.prediction, parts=replace(one.prediction.parts, compute=step_seconds, exposed=0.0,
                                                       bubble=0.0, waiting=0.0))  # fmt: skip
    return answer.objective.of(prediction).value
