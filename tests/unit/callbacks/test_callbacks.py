"""Callbacks of training libraries, called as those libraries call them."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.callbacks import (
    accelerate_tracker,
    keras_callback,
    lightning_callback,
    steps,
    trainer_callback,
)
from paceline.callbacks.steps import StepLog, start_log


@pytest.fixture
def log() -> Iterator[StepLog]:
    yield start_log(StepLog())
    steps._log = None


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A module of that name with these members."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), module)
    for member, value in members.items():
        setattr(module, member, value)


def trainer_arguments(world_size: int) -> SimpleNamespace:
    return SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=2, world_size=world_size)


class Loader:
    """A loader of two batches over five samples."""

    dataset = range(5)

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(("world_size", "samples"), [(1, 5), (2, 8)])
def test_the_last_step_of_a_trainers_epoch_has_what_is_left(
    monkeypatch: pytest.MonkeyPatch, log: StepLog, world_size: int, samples: int
) -> None:
    stand_in(monkeypatch, "transformers", TrainerCallback=object)
    callback, arguments = trainer_callback(), trainer_arguments(world_size)
    callback.on_epoch_begin(arguments, None, None, train_dataloader=Loader())
    callback.on_step_begin(arguments, None, None)
    callback.on_step_end(arguments, None, None)
    _, (epoch,) = log.best()
    assert (epoch.steps, epoch.samples) == (1, samples)


def test_a_trainer_whose_data_has_no_length_has_full_steps(monkeypatch: pytest.MonkeyPatch, log: StepLog) -> None:
    stand_in(monkeypatch, "transformers", TrainerCallback=object)
    callback, arguments = trainer_callback(), trainer_arguments(1)
    callback.on_epoch_begin(arguments, None, None, train_dataloader=iter(()))
    for _ in range(2):
        callback.on_step_begin(arguments, None, None)
        callback.on_step_end(arguments, None, None)
    assert log.best()[1][0].samples == 16


def test_an_evaluation_of_a_trainer_is_in_no_step(monkeypatch: pytest.MonkeyPatch, log: StepLog) -> None:
    stand_in(monkeypatch, "transformers", TrainerCallback=object)
    callback, arguments = trainer_callback(), trainer_arguments(1)
    callback.on_epoch_begin(arguments, None, None, train_dataloader=Loader())
    callback.on_step_end(arguments, None, None)
    callback.on_evaluate(arguments, None, None)
    callback.on_step_begin(arguments, None, None)
    assert log.best()[1][0].paused > 0


def test_several_batches_in_one_call_of_keras_count_as_many(monkeypatch: pytest.MonkeyPatch, log: StepLog) -> None:
    stand_in(monkeypatch, "keras", callbacks=SimpleNamespace(Callback=object))
    callback = keras_callback(10)
    callback.on_epoch_begin(0)
    for first in (0, 4):
        callback.on_train_batch_begin(first)
        callback.on_train_batch_end(first + 3)
    _, (epoch,) = log.best()
    assert (epoch.steps, epoch.samples) == (2, 80)


def test_steps_that_are_logged_with_a_number_are_counted_by_it(monkeypatch: pytest.MonkeyPatch, log: StepLog) -> None:
    stand_in(monkeypatch, "accelerate.tracking", GeneralTracker=object)
    tracker = accelerate_tracker(3)
    for number in (1, 2, 2, 5):
        tracker.log({}, step=number)
    _, (epoch,) = log.best()
    assert (epoch.steps, epoch.samples) == (2, 12)


def test_lightning_is_taken_under_the_name_that_the_script_uses(monkeypatch: pytest.MonkeyPatch, log: StepLog) -> None:
    class Callback:
        """Lightning's own."""

    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    stand_in(monkeypatch, "pytorch_lightning", Callback=Callback)
    callback = lightning_callback()
    assert isinstance(callback, Callback)
    callback.on_train_epoch_start(None, None)
    callback.on_train_batch_start(None, None, None, 0)
    callback.on_train_batch_end(None, None, None, {"x": SimpleNamespace(shape=(6, 2))}, 0)
    assert log.best()[1][0].samples == 6
