"""What measurements are made of, before anything is measured."""

import pytest

from paceline.footprint import LayerFacts, ModelFacts
from paceline.predict.calibrate import TIMED, _memory_fit, _transfer_curve
from paceline.strategies import strategies


def row(size: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {"bytes": size, "seconds": seconds, "cpu_seconds": cpu_seconds}


def test_a_transfer_that_waited_for_a_core_counts_by_its_cpu_seconds() -> None:
    curve = _transfer_curve([row(1000, 0.001, 0.0009), row(2000, 0.009, 0.0018), row(4000, 0.004, 0.0036)])
    assert curve.values == (0.001, 0.0018, 0.004)
    assert curve.cpu_seconds == (0.0009, 0.0018, 0.0036)


def test_memory_beyond_the_footprint_is_a_base_and_a_multiple_of_the_largest_layer() -> None:
    facts = ModelFacts((LayerFacts("x", 1, 1, 900),), 100)
    fit = _memory_fit("torch", facts, [10.0, 20.0, 40.0], [50_000.0, 90_000.0, 170_000.0])
    assert fit.base_bytes == pytest.approx(10_000)
    assert fit.transient == pytest.approx(1.0)


def test_strategies_whose_software_is_timed_are_of_each_kind() -> None:
    families = {strategies()[name].family for name in TIMED}
    assert families == {"data", "model", "server"}
