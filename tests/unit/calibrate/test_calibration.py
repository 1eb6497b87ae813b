"""What measurements are made of, before anything is measured."""

import pytest

from paceline.calibrate.calibration import (
    LEAST_DEVIATION,
    LOCAL_BATCHES,
    _transfer_curve,
    batches_within,
    deviation_of_a_run,
    never_falling,
)


def row(size: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {"bytes": size, "seconds": seconds, "cpu_seconds": cpu_seconds}


def test_a_transfer_that_waited_for_a_core_counts_by_its_cpu_seconds() -> None:
    curve = _transfer_curve([row(1000, 0.001, 0.0009), row(2000, 0.009, 0.0018), row(4000, 0.004, 0.0036)])
    assert curve.values == (0.001, 0.0018, 0.004)
    assert curve.cpu_seconds == (0.0009, 0.0018, 0.0036)


def test_fewer_bytes_never_take_longer_than_more() -> None:
    assert never_falling([1.0, 5.0, 2.0, 3.0, 2.5]) == [1.0, 2.0, 2.0, 2.5, 2.5]
    curve = _transfer_curve([row(4000, 0.002, 0.002), row(1000, 0.013, 0.013), row(2000, 0.001, 0.001)])
    assert curve.sizes == (1000.0, 2000.0, 4000.0)
    assert curve.values == (0.001, 0.001, 0.002)


def test_repeats_of_one_step_say_how_far_apart_runs_lie() -> None:
    # 0.1633 between them, 2.353 of Student's t for 1.645 of a normal curve, and the mean of four is off itself.
    assert deviation_of_a_run([[1.0, 1.2, 0.8, 1.0]]) == pytest.approx(0.1633 * 2.353 / 1.645 * 1.25**0.5, rel=1e-3)
    assert deviation_of_a_run([[1.0, 1.0, 1.0]]) == deviation_of_a_run([[1.0], [2.0]]) == LEAST_DEVIATION


def test_the_more_runs_are_repeated_the_less_is_added_for_not_knowing() -> None:
    once, often = [[1.0, 1.2, 0.8, 1.0]], [[1.0, 1.2, 0.8, 1.0], [2.0, 2.4, 1.6, 2.0], [0.1, 0.12, 0.08, 0.1]]
    assert 0.1633 < deviation_of_a_run(often) < 0.8 * deviation_of_a_run(once)


def test_models_whose_samples_take_long_are_measured_with_fewer_of_them() -> None:
    assert batches_within(3.0, 1e-4) == batches_within(3.0, 3 / 256) == LOCAL_BATCHES
    assert batches_within(3.0, 3 / 255) == tuple(batch // 2 for batch in LOCAL_BATCHES)
    assert batches_within(3.0, 0.15) == batches_within(3.0, 100.0) == (1, 4, 6, 10, 16)
