"""What measurements are made of, before anything is measured."""

from paceline.calibrate.calibration import LOCAL_BATCHES, batches_within, independent_workers


def test_models_whose_samples_take_long_are_measured_with_fewer_of_them() -> None:
    assert batches_within(3.0, 1e-4) == batches_within(3.0, 3 / 256) == LOCAL_BATCHES
    assert batches_within(3.0, 3 / 255) == tuple(batch // 2 for batch in LOCAL_BATCHES)
    assert batches_within(3.0, 0.15) == batches_within(3.0, 100.0) == (1, 4, 6, 10, 16)


def test_there_are_workers_that_compute_side_by_side_and_never_meet() -> None:
    independent = independent_workers()
    assert independent.framework == "torch"
    assert set(independent.traits.independent_with or ()) <= {knob.name for knob in independent.knobs}
