"""Steps of a script are noted by source, and the source that says most is taken."""

from collections.abc import Iterator

import numpy as np
import pytest

from paceline.callbacks import steps
from paceline.callbacks.optimizer import OptimizerSteps
from paceline.callbacks.steps import StepLog, batch_length, start_log, step, watch
from paceline.runs.scripts.process import _uneven


@pytest.fixture(autouse=True)
def forget_log() -> Iterator[None]:
    yield
    steps._log = None


def test_without_paceline_the_calls_change_nothing() -> None:
    with step(samples=3):
        pass
    assert list(watch([1, 2])) == [1, 2]
    assert steps.current_log() is None


def test_samples_of_steps_add_up() -> None:
    log = start_log(StepLog())
    for samples in (3, 4):
        with step(samples=samples):
            pass
    source, (epoch,) = log.best()
    assert (source, epoch.steps, epoch.samples) == ("step", 2, 7)


def test_each_pass_over_a_watched_loader_is_an_epoch_with_the_samples_of_its_batches() -> None:
    log = start_log(StepLog())
    for _ in range(2):
        assert len(list(watch([{"x": np.zeros((5, 2))}, {"x": np.zeros((1, 2))}]))) == 2
    source, epochs = log.best()
    assert (source, [epoch.samples for epoch in epochs], [epoch.steps for epoch in epochs]) == ("watch", [6, 6], [2, 2])


def test_a_watched_loader_can_be_passed_over_again_and_is_the_loader_in_all_else() -> None:
    class Loader(list[int]):
        sampler = "a sampler"

    unobserved = Loader()
    assert watch(unobserved) is unobserved
    log = start_log(StepLog())
    watched = watch(Loader([1, 2, 3]))
    assert [list(watched), list(watched)] == [[1, 2, 3], [1, 2, 3]]
    assert (len(watched), watched.sampler) == (3, "a sampler")  # type: ignore[attr-defined, arg-type]
    assert [epoch.steps for epoch in log.best()[1]] == [3, 3]


def test_a_pass_that_is_left_is_without_the_step_that_it_was_left_in() -> None:
    log = start_log(StepLog())
    for number in watch(range(5)):
        if number == 3:
            break
    assert [epoch.steps for epoch in log.best()[1]] == [3]


def test_a_step_that_raises_is_none() -> None:
    log = start_log(StepLog())
    with step(samples=1):
        pass
    with pytest.raises(KeyError), step(samples=8):
        raise KeyError
    with step(samples=1):
        pass
    _, (epoch,) = log.best()
    assert (epoch.steps, epoch.samples) == (2, 2)


def test_callbacks_are_there_without_an_import_of_their_own() -> None:
    import paceline

    assert callable(paceline.callbacks.trainer_callback)


def test_what_a_script_says_goes_before_what_is_observed() -> None:
    log = start_log(StepLog())
    observed, optimizer = OptimizerSteps(log), object()
    for _ in range(3):
        with step():
            observed.after_step(optimizer, (), {})
    assert log.best()[0] == "step"
    assert log.optimizer_steps == 3


def test_a_turn_of_two_optimizers_is_one_step_and_a_new_optimizer_takes_the_lead() -> None:
    log = StepLog()
    observed, first, second = OptimizerSteps(log), object(), object()
    for optimizer in (first, second) * 4:
        observed.after_step(optimizer, (), {})
    assert log.optimizer_steps == 4
    for _ in range(3):
        observed.after_step(second, (), {})
    assert log.optimizer_steps == 7


def test_steps_that_a_grad_scaler_skips_count() -> None:
    class Scaler:
        """Skips every third step, as after an overflow."""

        calls = 0

        def is_enabled(self) -> bool:
            return True

        def step(self, optimizer: object) -> None:
            self.calls += 1
            if self.calls % 3:
                observed.after_step(optimizer, (), {})

    log = StepLog()
    observed, scaler, optimizer = OptimizerSteps(log), Scaler(), object()
    step = observed.count_skipped(Scaler.step)
    for _ in range(12):
        step(scaler, optimizer)
    assert (log.optimizer_steps, log.skipped_steps, log.best()[1][0].steps) == (12, 4, 11)


def test_time_before_a_step_resumes_is_in_no_step() -> None:
    log = StepLog()
    log.begin_epoch("callback")
    log.end_step("callback", 1)
    log.epochs["callback"][-1].stamps[-1] -= 10**12  # as if a thousand seconds went by
    log.resume("callback")
    log.end_step("callback", 1)
    epoch = log.best()[1][0]
    assert epoch.stamps[-1] - epoch.stamps[-2] < 10**11 and epoch.paused >= 10**12


def test_the_length_of_a_batch_is_that_of_its_first_array() -> None:
    assert batch_length((["a"], np.zeros((4, 1)), np.zeros(9))) == 4
    assert batch_length(["text"]) is None


def test_steps_of_followers_are_told_where_turns_are_uneven() -> None:
    for turns, uneven in (([1, 2], False), ([1, 2, 2], True), ([1], False), ([1, 2, 3], False)):
        log = StepLog()
        observed, optimizers = OptimizerSteps(log), {number: object() for number in (1, 2, 3)}
        for _ in range(20):
            for number in turns:
                observed.after_step(optimizers[number], (), {})
        assert bool(_uneven("optimizer", log)) == uneven, turns
        assert not _uneven("step", log)
