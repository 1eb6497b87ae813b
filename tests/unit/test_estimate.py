"""How long a plan will take: exact where the runs are, and honest about how it is known."""

import pytest

from paceline.estimate import LEAST_STEPS, MEASURED_STEPS, Estimate, Pace, estimate, kind, pace, shortened_run
from paceline.plan import make_plan
from paceline.record import Epoch, Look, Record, Startup, Status
from paceline.runs.pauses.target import evaluations_in
from paceline.study import Study
from paceline.systems import System

MACHINE = System(cpu="a processor", cores=(0, 1), memory_bytes=8 << 30, gpus=(), frameworks={})
ONCE, FIRST_STEP, STEP, EVALUATION, IMPORT = 1.5, 0.5, 0.1, 0.25, 4.0


def planned(repeats=1, done=(), **factors):
    fixed = {"strategy": "fake", "dataset": "mnist-5k", "global_batch": 500, "epochs": 3}
    study = Study(name="trial", repeats=repeats, fixed=fixed, factors=factors)
    return make_plan(study, set(done), MACHINE, probe=lambda spec: None)


def ran(spec, step=STEP, forked=False):
    """A run that takes exactly what the constants say, however long it is."""
    lengths = [spec.steps] if spec.steps else [10 * spec.dataset_copies] * spec.epochs
    epochs = [
        Epoch(
            number=place + 1, seconds=steps * step + (FIRST_STEP - step if place == 0 else 0), steps=steps,
            samples=steps * spec.samples_per_step, cpu_seconds=1.0, train_loss=1.0, evaluation_seconds=EVALUATION,
        )
        for place, steps in enumerate(lengths)
    ]  # fmt: skip
    wall = ONCE + sum(epoch.seconds for epoch in epochs) + EVALUATION * len(epochs)
    startup = Startup(
        launch_seconds=0.1, import_seconds=IMPORT, build_seconds=0.2, first_step_seconds=FIRST_STEP, forked=forked
    )
    return Record(
        study="trial", spec=spec, repeat=0, status=Status.OK, started_at="2026-01-01", wall_seconds=wall,
        epochs=tuple(epochs), startup=startup, step_seconds={0: (FIRST_STEP, *[step] * (sum(lengths) - 1))},
    )  # fmt: skip


def test_runs_that_look_for_a_target_are_told_with_their_looks_and_may_end_sooner():
    fixed = {"strategy": "fake", "dataset": "mnist-5k", "global_batch": 50, "steps": 100, "target_accuracy": 0.9}
    study = Study(name="trial", fixed=fixed, factors={"optimizer": {"lr": [0.1, 0.2]}})
    plan, asked = make_plan(study, set(), MACHINE, probe=lambda spec: None), []

    def looking(spec):
        asked.append(spec)
        record = ran(spec)
        looks = tuple(Look(step=step + 1, test_accuracy=0.1) for step in range(evaluations_in(spec.steps)))
        wall = record.wall_seconds + EVALUATION * len(looks)
        return record.model_copy(update={"looks": looks, "wall_seconds": wall})

    told = estimate(plan, [], looking)
    assert told.seconds == pytest.approx(2 * (ran(plan.to_run[0].spec).wall_seconds + EVALUATION * evaluations_in(100)))
    assert told.may_end_sooner
    # A learning rate takes no time.
    assert len(asked) == 1


def failing(spec):
    return ran(spec).model_copy(update={"status": Status.FAILED, "reason": "no data", "epochs": ()})


def test_a_few_steps_tell_how_long_whole_runs_take():
    plan = planned(repeats=2, workers=[1, 2], dataset_copies=[1, 4])
    truth = sum(ran(run.spec).wall_seconds for run in plan.to_run)
    told = estimate(plan, [], ran)
    assert told.seconds == pytest.approx(truth)
    assert (told.stored, told.measured, told.extrapolated) == (0, 2, 0)


def test_runs_that_differ_only_in_length_are_measured_once():
    asked = []
    estimate(
        planned(workers=[1, 2], dataset_copies=[1, 4, 8], seed=[0, 1]), [], lambda spec: asked.append(spec) or ran(spec)
    )
    assert sorted(spec.workers for spec in asked) == [1, 2]


def test_stored_runs_stand_for_measured_ones():
    plan = planned(dataset_copies=[1, 4])
    told = estimate(plan, [ran(plan.to_run[0].spec)], measure=pytest.fail)
    assert told.seconds == pytest.approx(sum(ran(run.spec).wall_seconds for run in plan.to_run))
    assert (told.stored, told.measured) == (1, 0)


def test_a_stored_run_without_single_steps_has_the_pace_of_all_of_them():
    spec = planned(epochs=[1]).to_run[0].spec
    whole = ran(spec)
    found = pace(whole.model_copy(update={"step_seconds": {}}))
    assert found.step_seconds == pytest.approx(whole.epochs[0].seconds / whole.epochs[0].steps)
    assert found.once_seconds == pytest.approx(ONCE)


def test_what_is_done_costs_nothing():
    plan = planned(repeats=2)
    half = planned(repeats=2, done=[(plan.to_run[0].spec.key(), 0)])
    assert estimate(half, [], ran).seconds == pytest.approx(estimate(plan, [], ran).seconds / 2)


def test_a_shared_import_is_paid_once():
    def forked(spec):
        return ran(spec, forked=True)

    alone, plan = planned(), planned(workers=[1, 2])
    assert estimate(plan, [], forked).seconds == pytest.approx(2 * estimate(alone, [], forked).seconds + IMPORT)


def test_what_there_is_no_time_to_measure_is_likened_to_the_most_similar():
    plan = planned(global_batch=[100, 200])
    calls = []

    def measure(spec):
        calls.append(spec)
        return ran(spec, step=spec.samples_per_step / 1000) if len(calls) == 1 else None

    told = estimate(plan, [], measure)
    assert (told.measured, told.extrapolated) == (1, 1)
    lengths = {100: 150, 200: 75}
    shared = plan.to_run[0].spec
    assert {run.spec.global_batch for run in plan.to_run} == set(lengths)
    known = pace(ran(shortened_run(calls[0]), step=calls[0].samples_per_step / 1000))
    expected = sum(known.once_seconds + steps * batch / 1000 + 3 * EVALUATION for batch, steps in lengths.items())
    assert told.seconds == pytest.approx(expected), shared


def test_the_smallest_batches_of_everything_are_measured_first():
    asked = []
    told = estimate(
        planned(workers=[1, 2], global_batch=[500, 250, 1000]), [],
        lambda spec: asked.append(spec) or (ran(spec) if len(asked) <= 2 else None),
    )  # fmt: skip
    assert sorted((spec.global_batch, spec.workers) for spec in asked[:2]) == [(250, 1), (250, 2)]
    assert (told.measured, told.extrapolated) == (2, 4)


def test_slow_steps_are_measured_less_often():
    asked = []
    estimate(planned(workers=[1, 2, 4]), [], lambda spec: asked.append(spec.steps) or ran(spec, step=2.0))
    assert asked == [MEASURED_STEPS, LEAST_STEPS, LEAST_STEPS]


def test_a_kind_that_fails_is_told_and_the_others_stand_for_it():
    told = estimate(planned(workers=[1, 2]), [], lambda spec: failing(spec) if spec.workers == 2 else ran(spec))
    assert (told.measured, told.extrapolated, told.failure) == (1, 1, "no data")


def test_where_nothing_can_be_measured_no_number_is_given():
    assert estimate(planned(), [], failing) == Estimate(None, 0, 0, 0, "no data")


def test_what_every_short_run_says_is_not_asked_of_all_of_them():
    asked = []
    estimate(planned(workers=[1, 2, 5, 10]), [], lambda spec: asked.append(spec) or failing(spec))
    assert len(asked) == 2


def test_a_run_with_a_clock_of_its_own_costs_what_its_processes_cost():
    record = ran(planned().to_run[0].spec).model_copy(update={"wall_seconds": 0.5})
    assert pace(record) == Pace(0.5, 0.0, 0.0)


def test_a_short_run_is_of_the_same_kind_and_never_longer_than_the_run():
    spec = planned(dataset_copies=[4]).to_run[0].spec
    assert shortened_run(spec).steps == MEASURED_STEPS
    assert kind(shortened_run(spec)) == kind(spec)
    few = spec.model_copy(update={"dataset_copies": 1, "epochs": 1, "global_batch": 2500})
    assert shortened_run(few).steps == 2
