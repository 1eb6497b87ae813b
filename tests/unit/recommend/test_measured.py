"""Candidates that were run: how sure their order is, which did otherwise than predicted, and what may explain it."""

from dataclasses import replace

import pytest

from paceline.cli.recommend import RecommendOptions, _check
from paceline.errors import SpecError
from paceline.execute import Listener
from paceline.predict.question import Question
from paceline.recommend.answer import Answer, Candidate, Measurement, recommend, with_measurements
from paceline.recommend.reasons import explain
from paceline.recommend.trials import QUICK, THOROUGH, try_best
from paceline.recommend.unexpected import explain_unexpected, is_unexpected, was_unexpected
from paceline.store import Store
from paceline.systems.files import load_hardware
from paceline.systems.hardware import LOCAL


@pytest.fixture
def answer() -> Answer:
    """What is predicted of the fake strategy on two cores."""
    return recommend(Question(
        hardware=load_hardware("cpu-2-cores"), workload="mnist-small", workers=(1, 2), strategies=("fake",),
    ))  # fmt: skip


def run(answer: Answer, values: dict[int, tuple[float, ...]], **fields: bool) -> Answer:
    """The answer after each worker count gave these samples/s."""
    by_workers = {candidate.spec.workers: candidate for candidate in answer.ranked}
    measured = [
        (by_workers[workers].spec, Measurement(rates, max(rates), 1, **{"disturbed": False, **fields}))
        for workers, rates in values.items()
    ]
    return with_measurements(answer, measured, len(measured))


def expected(answer: Answer, share: float = 1.0) -> dict[int, tuple[float, ...]]:
    """Three runs of each candidate, this share of what is predicted."""
    return {
        candidate.spec.workers: tuple(candidate.value.value * share * (1 + repeat / 1000) for repeat in range(3))
        for candidate in answer.ranked
    }


def of_workers(answer: Answer, workers: int) -> Candidate:
    return next(candidate for candidate in answer.ranked if candidate.spec.workers == workers)


def test_measured_candidates_say_how_sure_their_order_is(answer: Answer) -> None:
    said = " ".join(explain(run(answer, expected(answer))))
    assert "How sure: likely, 9" in said and "ahead of fake x1 in each of 3 runs (4 would make it sure)." in said


def test_one_run_of_each_is_never_sure(answer: Answer) -> None:
    once = run(answer, {workers: rates[:1] for workers, rates in expected(answer).items()})
    assert "How sure: not sure, 1 run of each cannot tell chance from effect." in explain(once)


def test_runs_that_overlap_tie_however_far_their_best_are_apart(answer: Answer) -> None:
    tied = run(answer, {1: (20_000.0, 25_000.0, 30_000.0), 2: (20_500.0, 24_000.0, 39_000.0)})
    assert all(candidate.tied for candidate in tied.ranked)
    assert tied.pick is not None and tied.pick.spec.workers == 1
    assert "It ties with fake x2: within 5 %, or by runs that overlap. Of those it is the simplest." in explain(tied)


def test_a_pick_that_is_simpler_than_the_fastest_does_not_claim_its_lead(answer: Answer) -> None:
    near = run(answer, {1: (100.0, 100.1, 100.2), 2: (103.0, 103.1, 103.2)})
    assert near.pick is not None and near.pick.spec.workers == 1
    said = "How sure: likely, fake x2 is 3 % ahead of it in 3 runs, too little to give up what is simpler."
    assert said in explain(near)


def test_predicted_candidates_say_nothing_of_runs(answer: Answer) -> None:
    assert not any(sentence.startswith("How sure") for sentence in explain(answer))


def test_a_value_within_or_near_its_interval_is_expected() -> None:
    assert not any(is_unexpected(value, 100.0, 200.0) for value in (91.0, 100.0, 150.0, 219.0))
    assert all(is_unexpected(value, 100.0, 200.0) for value in (89.0, 221.0))


def test_a_measurement_far_from_its_prediction_is_explained_by_what_is_known(answer: Answer) -> None:
    assert not any(map(was_unexpected, run(answer, expected(answer)).ranked))
    far = run(answer, expected(answer, 5.0))
    assert all(map(was_unexpected, far.ranked))
    sentence = explain_unexpected(far, of_workers(far, 2))
    assert sentence is not None and sentence.startswith("Measured ") and "far from the predicted " in sentence
    assert sentence.endswith(
        "it is from the description of cpu-2-cores, not from this machine; paceline calibrate measures it."
    )
    assert sentence in explain(far)
    local = far.question.hardware.model_copy(update={"name": LOCAL})
    again = replace(far, question=replace(far.question, hardware=local))
    assert "no longer fits this machine or this model; believe the measurement" in str(
        explain_unexpected(again, of_workers(again, 2))
    )


def test_other_load_and_more_workers_than_cores_explain_a_slow_run(answer: Answer) -> None:
    slow = run(answer, expected(answer, 0.1), disturbed=True)
    assert "other programs used the machine during the runs; measure again with --fresh" in str(
        explain_unexpected(slow, of_workers(slow, 2))
    )
    small = replace(answer.question, hardware=answer.question.hardware.model_copy(update={"node_devices": 1}))
    crowded = run(replace(answer, question=small), expected(answer, 0.1))
    assert "2 workers share 1 core, which predictions leave out" in str(
        explain_unexpected(crowded, of_workers(crowded, 2))
    )


def test_stored_runs_far_from_the_prediction_are_told_too(answer: Answer) -> None:
    first = answer.ranked[0]
    earlier = replace(first, earlier_samples_per_second=first.prediction.samples_per_second.high * 2)
    assert str(explain_unexpected(answer, earlier)).startswith("Earlier runs made ")
    near = replace(first, earlier_samples_per_second=first.prediction.samples_per_second.value)
    assert explain_unexpected(answer, near) is None


class Interruption(Listener):
    """Presses Ctrl-C before the third run."""

    def __init__(self) -> None:
        self.begun = 0

    def started(self, run: object, number: int) -> None:
        self.begun += 1
        if number == 3:
            raise KeyboardInterrupt


class Count(Listener):
    """Counts the runs that are made."""

    def __init__(self) -> None:
        self.begun = 0

    def started(self, run: object, number: int) -> None:
        self.begun += 1


def test_measuring_goes_on_where_it_was_interrupted(answer: Answer, store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        try_best(answer, 2, store, Interruption())
    rest, nothing, anew = Count(), Count(), Count()
    measured = try_best(answer, 2, store, rest)
    assert rest.begun == 2 * THOROUGH.repeats - 2
    assert [len(candidate.measured_values) for candidate in measured.ranked] == [THOROUGH.repeats] * 2
    assert measured == try_best(answer, 2, store, nothing)
    assert nothing.begun == 0
    try_best(answer, 2, store, anew, fresh=True)
    assert anew.begun == 2 * THOROUGH.repeats


def test_a_quick_look_is_one_short_run_of_each(answer: Answer, store: Store) -> None:
    count = Count()
    measured = try_best(answer, 2, store, count, QUICK)
    assert count.begun == 2
    assert [len(candidate.measured_values) for candidate in measured.ranked] == [1, 1]


@pytest.mark.parametrize("name", ["quick", "fresh"])
def test_options_of_measuring_need_something_to_measure(answer: Answer, name: str) -> None:
    with pytest.raises(SpecError, match=f"--{name} is about runs that are measured; add --measure K"):
        _check(RecommendOptions(**{name: True}), answer.question)
