"""The learning rate of a recommended batch, and the critical batch that stored runs tell."""

import pytest

from paceline.analysis.batches.critical import CriticalBatch, critical_batch_of
from paceline.analysis.rows import summarise
from paceline.recipe import Optimizer
from paceline.recommend.learning_rate import learning_rate_sentence, scaled
from paceline.spec import RunSpec
from unit.analysis.test_regimes import record
from unit.figures import example_records

QUESTION = RunSpec(workload="mnist-small", global_batch=256, steps=1)


def test_sgd_follows_the_batch_linearly_and_warms_up_for_five_epochs_of_a_long_training() -> None:
    after = scaled(Optimizer(name="sgd", lr=0.1), batch=1024, steps_per_epoch=50, epochs=90)
    assert (after.lr, after.warmup_steps) == (0.4, 250)


def test_adam_follows_it_by_the_square_root_and_a_short_training_warms_up_for_a_tenth_of_it() -> None:
    after = scaled(Optimizer(name="adamw", lr=0.001), batch=1024, steps_per_epoch=50, epochs=4)
    assert (after.lr, after.warmup_steps) == (0.002, 20)


def test_a_smaller_batch_has_a_smaller_rate_and_no_warm_up() -> None:
    after = scaled(Optimizer(name="sgd", lr=0.1), batch=64, steps_per_epoch=50, epochs=9)
    assert (after.lr, after.warmup_steps) == (0.025, 0)


def test_the_usual_batch_and_optimizers_without_a_rule_stay_as_they_are() -> None:
    assert scaled(Optimizer(), 256, 50, 9) == Optimizer()
    assert scaled(Optimizer(name="lbfgs"), 1024, 50, 9) == Optimizer(name="lbfgs")
    assert learning_rate_sentence(Optimizer(), 256) is None


def test_a_warm_up_of_the_users_own_stays() -> None:
    assert scaled(Optimizer(warmup_steps=7), 1024, 50, 9).warmup_steps == 7


def test_the_rule_is_said_with_what_it_takes_for_granted() -> None:
    said = learning_rate_sentence(Optimizer(name="sgd", lr=0.1), 512)
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
    assert critical.source == "from 6 stored runs that looked for accuracy 0.9"
    assert critical.text.startswith("about ")


def test_without_a_search_the_noise_scale_tells_it() -> None:
    spec = RunSpec(strategy="torch-ddp", workers=2, local_batch=64, epochs=3, noise_scale=True, dataset="mnist-5k")
    critical = critical_batch_of(QUESTION, summarise([example_records.record(spec)]))
    assert critical is not None
    assert (critical.value, critical.low, critical.high) == (160.0, pytest.approx(160 / 1.5), 240.0)
    assert critical.source == "the noise scale of gradients in a stored run (torch-ddp x2, epoch 3)"


def test_runs_of_another_model_tell_nothing() -> None:
    other = QUESTION.model_copy(update={"workload": "mnist-large"})
    runs = [record(batch, 0.1, 0, round(50 * (1 + 100 / batch))) for batch in (8, 16, 32)]
    assert critical_batch_of(other, summarise(runs)) is None
    assert critical_batch_of(QUESTION, []) is None


def test_the_interval_of_the_critical_batch_is_one_of_the_samples_needed() -> None:
    assert CriticalBatch(100, 50, 200).more_samples(100) == (2.0, 1.5, 3.0)
    assert CriticalBatch(100).more_samples(50) == (1.5, 1.5, 1.5)
    assert CriticalBatch(100, None, 200).text == "about 100 samples (90 %: not known to 200), as --critical-batch says"
