"""The learning rate of a recommended batch, and the critical batch that stored runs tell."""

from pathlib import Path

import pytest

from paceline.analysis.batches.critical import CriticalBatch, critical_batch_of
from paceline.analysis.rows import summarise
from paceline.predict.question import Question
from paceline.recipe import Optimizer
from paceline.recommend.learning_rate import (
    Anchor,
    anchor_of,
    learning_rate_advice,
    learning_rate_sentence,
    scaled,
    with_its_learning_rate,
)
from paceline.record import Record
from paceline.spec import ModelFile, RunSpec
from paceline.systems.files import load_hardware
from unit.analysis.test_regimes import record
from unit.figures import example_records

QUESTION = RunSpec(workload="mnist-small", global_batch=256, steps=1)
SEARCHED = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32, 64, 128, 256)]


def asked(**fields):
    return Question(hardware=load_hardware("cpu-2-cores"), workload="mnist-small", workers=(1, 2), **fields)


def test_sgd_follows_the_batch_linearly_and_warms_up_for_five_epochs_of_a_long_training() -> None:
    after = scaled(Optimizer(name="sgd", lr=0.1), 1024, 50, epochs=90, anchor=Anchor(256, 0.1))
    assert (after.lr, after.warmup_steps) == (0.4, 250)


def test_adam_follows_it_by_the_square_root_and_a_short_training_warms_up_for_a_tenth_of_it() -> None:
    after = scaled(Optimizer(name="adamw", lr=0.001), 1024, 50, epochs=4, anchor=Anchor(256, 0.001))
    assert (after.lr, after.warmup_steps) == (0.002, 20)


def test_a_smaller_batch_has_a_smaller_rate_and_no_warm_up() -> None:
    after = scaled(Optimizer(name="sgd", lr=0.1), 64, 50, epochs=9, anchor=Anchor(256, 0.1))
    assert (after.lr, after.warmup_steps) == (0.025, 0)


def test_the_usual_batch_and_optimizers_without_a_rule_stay_as_they_are() -> None:
    assert scaled(Optimizer(), 256, 50, 9, Anchor(256, 0.001)) == Optimizer()
    assert scaled(Optimizer(name="lbfgs"), 1024, 50, 9, Anchor(256, 0.001)) == Optimizer(name="lbfgs")
    assert learning_rate_sentence(Optimizer(), 256, Anchor(256, 0.001)) is None


def test_a_warm_up_of_the_users_own_stays() -> None:
    assert scaled(Optimizer(warmup_steps=7), 1024, 50, 9, Anchor(256, 0.001)).warmup_steps == 7


def test_the_rule_is_said_with_what_it_takes_for_granted() -> None:
    said = learning_rate_sentence(Optimizer(name="sgd", lr=0.1), 512, Anchor(256, 0.1))
    assert said is not None
    assert said.startswith(
        "Learning rate: 0.2, warmed up over the first steps (at most 5 epochs), if 0.1 is right for a "
    )
    assert "batch of 256: sgd follows the batch by the linear rule" in said


def test_a_search_for_a_target_tells_the_critical_batch_with_its_interval_and_source() -> None:
    runs = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32, 64, 128, 256)]
    critical = critical_batch_of(QUESTION, summarise(runs))
    assert critical is not None
    assert critical.value == pytest.approx(100, rel=0.05)
    assert critical.source == "from 6 stored runs that looked for accuracy 0.9 with sgd"
    assert critical.text.startswith("about ")


def test_without_a_search_the_noise_scale_tells_it() -> None:
    spec = RunSpec(strategy="torch-ddp", workers=2, local_batch=64, epochs=3, noise_scale=True, dataset="mnist-5k")
    critical = critical_batch_of(QUESTION, summarise([example_records.record(spec)]))
    assert critical is not None
    assert (critical.value, critical.low, critical.high) == (160.0, pytest.approx(160 / 1.5), 240.0)
    assert critical.source == "the noise scale of gradients in a stored run (torch-ddp x2, epoch 3 on mnist-5k)"


def test_a_noise_scale_whose_interval_begins_at_nothing_tells_nothing() -> None:
    spec = RunSpec(strategy="torch-ddp", workers=2, local_batch=64, epochs=3, noise_scale=True, dataset="mnist-5k")
    run = example_records.record(spec)
    ends = [(20.0, 90.0), (30.0, None), (0.0, None)]

    def with_ends(*chosen: tuple[float, float | None]) -> Record:
        epochs = []
        for epoch, (low, high) in zip(run.epochs, chosen, strict=True):
            assert epoch.noise is not None
            noise = epoch.noise.model_copy(update={"low": low, "high": high})
            epochs.append(epoch.model_copy(update={"noise": noise}))
        return run.model_copy(update={"epochs": tuple(epochs)})

    bounded = critical_batch_of(QUESTION, summarise([with_ends(*ends)]))
    assert bounded is not None and (bounded.low, bounded.high) == (20.0, 90.0)
    open_above = critical_batch_of(QUESTION, summarise([with_ends(ends[2], ends[1], ends[2])]))
    assert open_above is not None and (open_above.low, open_above.high) == (30.0, None)
    # It may be that a larger batch needs no more samples.
    assert open_above.more_samples(80) == (2.0, 1.0, pytest.approx(1 + 80 / 30))
    assert critical_batch_of(QUESTION, summarise([with_ends(ends[2], ends[2], ends[2])])) is None


def test_runs_of_another_model_tell_nothing() -> None:
    other = QUESTION.model_copy(update={"workload": "mnist-large"})
    runs = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32)]
    assert critical_batch_of(other, summarise(runs)) is None
    assert critical_batch_of(QUESTION, []) is None


def test_the_interval_of_the_critical_batch_is_one_of_the_samples_needed() -> None:
    assert CriticalBatch(100, 50, 200).more_samples(100) == (2.0, 1.5, 3.0)
    assert CriticalBatch(100).more_samples(50) == (1.5, 1.5, 1.5)
    assert CriticalBatch(100, None, 200).text == "about 100 samples (90 %: not known to 200), as --critical-batch says"


def test_a_very_short_training_still_warms_up_over_some_steps() -> None:
    assert scaled(Optimizer(name="sgd", lr=0.1), 512, 9, 2, Anchor(256, 0.1)).warmup_steps == 9


def test_a_rate_that_is_given_with_one_batch_is_right_for_that_one() -> None:
    question = asked(optimizer={"name": "sgd", "lr": 0.3}, global_batches=(64,))
    assert anchor_of(question, None, 64) == Anchor(64, 0.3)
    assert learning_rate_sentence(question.base.optimizer, 64, anchor_of(question, None, 64)) is None
    assert anchor_of(asked(optimizer={"lr": 0.3}), None, 64) == Anchor(256, 0.3)
    assert anchor_of(asked(global_batches=(64,)), None, 64) == Anchor(256, 0.001)


def test_a_search_with_the_same_optimizer_tells_the_rate() -> None:
    critical = critical_batch_of(QUESTION, summarise(SEARCHED))
    question = asked(optimizer={"name": "sgd"})
    assert anchor_of(question, critical, 32) == Anchor(32, 0.1, known=True)
    settings = question.base.optimizer
    assert learning_rate_sentence(settings, 32, anchor_of(question, critical, 32)) == (
        "Learning rate: 0.1, which took stored runs of batch 32 to the target in fewest steps."
    )
    larger = learning_rate_sentence(settings, 512, anchor_of(question, critical, 512))
    assert larger is not None and larger.startswith("Learning rate: 0.2, warmed up over the first steps")
    assert "as 0.1 took stored runs of batch 256 to their target in the fewest steps" in larger
    # Adam was not searched with, and a given rate stands.
    assert anchor_of(asked(), critical, 32) == Anchor(256, 0.001)
    assert anchor_of(asked(optimizer={"name": "sgd", "lr": 0.7}), critical, 32) == Anchor(256, 0.7)


def test_searches_on_the_data_and_with_the_optimizer_in_question_count_before_others() -> None:
    other = [run.model_copy(update={"spec": run.spec.model_copy(update={"dataset": "synthetic"})}) for run in [
        record(batch, 0.1, 0, round(50 * (1 + 900 / batch))) for batch in (8, 16, 32, 64, 128, 256, 512)
    ]]  # fmt: skip
    critical = critical_batch_of(QUESTION, summarise([*other, *SEARCHED]))
    assert critical is not None and critical.value == pytest.approx(100, rel=0.05)
    alone = critical_batch_of(QUESTION, summarise(other))
    assert alone is not None and alone.source.endswith("accuracy 0.9 on synthetic with sgd")


def test_the_advice_tries_batches_around_the_critical_one_where_nobody_names_one() -> None:
    assert CriticalBatch(100).batches_around == (32, 64, 128, 256, 512)
    assert CriticalBatch(3).batches_around == (8, 16)


def test_the_rate_of_the_users_own_optimizer_is_left_to_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def build(): ...\n\n\ndef optimizer(parameters): ...\n")
    spec = QUESTION.model_copy(update={"model": ModelFile.from_text(str(file)), "global_batch": 1024})
    said = learning_rate_advice(spec, asked(), None)
    assert said is not None and said.startswith(
        "Learning rate: that of optimizer() in mine.py, which is taken as it is"
    )
    assert with_its_learning_rate(spec, asked(), None, 10, 5) == spec
    file.write_text("def build(): ...\n")
    assert with_its_learning_rate(spec, asked(), None, 10, 5).optimizer.lr == 0.002
    assert "0.002" in str(learning_rate_advice(spec, asked(), None))
