"""How often to save: the interval, what is lost at it, and where its numbers come from."""

import random

import pytest

from paceline.contract.context import spec_facts
from paceline.errors import SpecError
from paceline.plan import complete
from paceline.recommend.checkpoints import (
    Failures,
    SavingAdvice,
    best_interval,
    lost_share,
    predicted_bytes,
)
from paceline.spec import RunSpec

DAY = 86_400.0
PARAMETERS = 402_442


def simulated_loss(interval: float, save: float, restart: float, mean: float, segments: int = 20_000) -> float:
    """Training with failures at random, segment by segment: what share of the time was no progress."""
    random_numbers, elapsed = random.Random(7), 0.0
    for _ in range(segments):
        while (until_failure := random_numbers.expovariate(1 / mean)) < interval + save:
            elapsed += until_failure
            # A start anew may fail as well.
            while (until_failure := random_numbers.expovariate(1 / mean)) < restart:
                elapsed += until_failure
            elapsed += restart
        elapsed += interval + save
    return 1 - segments * interval / elapsed


def test_the_interval_is_youngs() -> None:
    assert best_interval(save_seconds=2.0, mean_seconds=10_000.0) == 200.0


@pytest.mark.parametrize(
    ("interval", "save", "restart", "mean"),
    [(200.0, 2.0, 10.0, 10_000.0), (60.0, 10.0, 30.0, 300.0), (5.0, 1.0, 0.0, 4.0)],
)
def test_the_share_that_is_lost_is_that_of_a_simulation(
    interval: float, save: float, restart: float, mean: float
) -> None:
    assert lost_share(interval, save, restart, mean) == pytest.approx(
        simulated_loss(interval, save, restart, mean), abs=0.01
    )


def test_no_other_interval_loses_clearly_less() -> None:
    best = lost_share(best_interval(2.0, 10_000.0), 2.0, 10.0, 10_000.0)
    others = [lost_share(seconds, 2.0, 10.0, 10_000.0) for seconds in range(10, 2000, 10)]
    assert best <= min(others) * 1.01


def test_where_failures_come_faster_than_a_save_everything_is_lost() -> None:
    assert lost_share(100.0, 100.0, 10.0, mean_seconds=0.1) == 1.0
    assert 0.99 < lost_share(10.0, 10.0, 1.0, mean_seconds=2.0) < 1.0


def test_devices_fail_one_by_one() -> None:
    assert Failures.of(2.0, None, None).mean_seconds(devices=64) == DAY / 2  # type: ignore[union-attr]
    assert Failures.of(None, 64 * DAY, None).mean_seconds(devices=64) == DAY  # type: ignore[union-attr]
    assert Failures.of(None, None, None) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((1.0, 100.0, None), "--failures-per-day and --device-mtbf both say how often training fails; give one"),
        ((0.0, None, None), "--failures-per-day 0 is out of range; it must be more than 0"),
        ((None, 0.0, None), "--device-mtbf 0 is out of range; it must be more than 0"),
        ((1.0, None, 0.0), "--disk 0 is out of range; it must be more than 0"),
        ((None, None, 1e9), "--disk says how fast checkpoints are written; give --failures-per-day too"),
    ],
)
def test_a_rate_that_is_none_is_refused(values: tuple[float | None, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Failures.of(*values)


def advice(records: tuple[int, ...] = ()) -> SavingAdvice:
    return SavingAdvice(DAY, 4.8e6, 0.005, 3.0, 0.02, records, 1e9)


def test_the_sentence_says_whether_a_checkpoint_was_measured_or_predicted() -> None:
    # sqrt(2 x 0.005 x 86,400) = 29.4 s, which are 1,470 steps of 20 ms.
    assert advice().steps == 1470
    assert "Save every 1,470 steps (29.4 s): with a failure every 24 h 0 min and 5 ms" in advice().sentence
    assert "(predicted, at 1 GB/s of a machine's disk)" in advice().sentence
    assert "(measured in run 3)" in advice((3,)).sentence
    assert "(measured in 2 runs)" in advice((3, 5)).sentence


@pytest.mark.parametrize(
    ("name", "total", "on_a_machine"),
    [("torch-ddp", 1.0, 1.0), ("torch-fsdp", 1.0, 0.5), ("torch-zero", 1.0, 0.5), ("tf-multiworker", 4.0, 2.0)],
)
def test_the_bytes_of_a_checkpoint_follow_from_who_writes_it(name: str, total: float, on_a_machine: float) -> None:
    spec = complete(RunSpec(strategy=name, workers=4, global_batch=64, steps=1))
    predicted = predicted_bytes(spec, spec_facts(spec), node_devices=2)
    whole = 3 * PARAMETERS * 4
    assert predicted == pytest.approx((total * whole, on_a_machine * whole), rel=0.01)
