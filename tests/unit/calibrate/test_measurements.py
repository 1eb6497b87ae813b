"""What is kept of timings that gauges and runs reported."""

from collections.abc import Callable

import pytest

from paceline.calibrate.measurements import (
    LEAST_DEVIATION,
    deviation_of_a_run,
    never_falling,
    slowest_of_each_step,
    transfer_curve,
)
from paceline.record import Epoch, Record


def row(size: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {"bytes": size, "seconds": seconds, "cpu_seconds": cpu_seconds}


def test_a_transfer_that_waited_for_a_core_counts_by_its_cpu_seconds() -> None:
    curve = transfer_curve([row(1000, 0.001, 0.0009), row(2000, 0.009, 0.0018), row(4000, 0.004, 0.0036)])
    assert curve.values == (0.001, 0.0018, 0.004)


def test_fewer_bytes_never_take_longer_than_more() -> None:
    assert never_falling([1.0, 5.0, 2.0, 3.0, 2.5]) == [1.0, 2.0, 2.0, 2.5, 2.5]
    curve = transfer_curve([row(4000, 0.002, 0.002), row(1000, 0.013, 0.013), row(2000, 0.001, 0.001)])
    assert curve.sizes == (1000.0, 2000.0, 4000.0)
    assert curve.values == (0.001, 0.001, 0.002)


def test_repeats_of_one_step_say_how_far_apart_runs_lie() -> None:
    # 0.1633 between them, 2.353 of Student's t for 1.645 of a normal curve, and the mean of four is off itself.
    assert deviation_of_a_run([[1.0, 1.2, 0.8, 1.0]]) == pytest.approx(0.1633 * 2.353 / 1.645 * 1.25**0.5, rel=1e-3)
    assert deviation_of_a_run([[1.0, 1.0, 1.0]]) == deviation_of_a_run([[1.0], [2.0]]) == LEAST_DEVIATION


def test_the_more_runs_are_repeated_the_less_is_added_for_not_knowing() -> None:
    once, often = [[1.0, 1.2, 0.8, 1.0]], [[1.0, 1.2, 0.8, 1.0], [2.0, 2.4, 1.6, 2.0], [0.1, 0.12, 0.08, 0.1]]
    assert 0.1633 < deviation_of_a_run(often) < 0.8 * deviation_of_a_run(once)


def test_workers_that_go_on_together_take_as_long_as_the_slowest_in_each_step(
    make_record: Callable[..., Record],
) -> None:
    # Ten steps in each epoch; the first does not count, and of the others the less disturbed one does.
    first, quiet, disturbed = [9.0] * 10, [1.0, 2.0] * 5, [4.0] * 10
    epochs = tuple(
        Epoch(number=number, seconds=seconds, steps=10, samples=640, train_loss=1.0, cpu_seconds=seconds)
        for number, seconds in enumerate((90.0, 15.0, 40.0))
    )
    steps = {0: (*first, *quiet, *disturbed), 1: (*first, *reversed(quiet), *disturbed)}
    assert slowest_of_each_step(make_record(epochs=epochs, step_seconds=steps)) == pytest.approx(2.0)
