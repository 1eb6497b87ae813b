"""Costs of memory that are known, found again in what was measured."""

import pytest

from paceline.calibrate.memory import MeasuredPeak, MeasuredScratch, fit_memory, fit_scratch
from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.memory import all_kept, beyond_kept

CONVOLUTION = (("kernel", (3, 3, 8, 8)),)
# 10 numbers in; a layer that keeps its 100 outputs, one that keeps 30 beside its 20, and one that has most parameters.
MODEL = ModelFacts(
    (
        LayerFacts("a", 5, 1, 100, arrays=CONVOLUTION),
        LayerFacts("b", 0, 1, 20, kept_elements=50),
        LayerFacts("c", 900, 1, 4, arrays=(("kernel", (20, 4)),)),
    ),
    input_elements=10,
)


def measured(parameters: int, batch: int, per_weight: float, per_activation: float, given: int = 20) -> MeasuredScratch:
    layer = LayerFacts("x", parameters, 1, 30, arrays=CONVOLUTION)
    tensors = 4 * (parameters + batch * (given + layer.kept))
    taken = per_weight * 4 * parameters + per_activation * 4 * batch * (given + layer.kept)
    return MeasuredScratch(layer, given, batch, first=False, peak_bytes=tensors + taken)


def test_scratch_of_weights_and_of_samples_comes_apart() -> None:
    (found,) = fit_scratch("torch", [measured(10_000, 4, 1.7, 0.9), measured(100, 400, 1.7, 0.9)])
    assert (found.kind, found.framework) == ("convolution", "torch")
    assert found.per_weight_byte == pytest.approx(1.7)
    assert found.per_activation_byte == pytest.approx(0.9)


def test_a_layer_that_takes_nothing_beside_its_tensors_has_no_scratch() -> None:
    (found,) = fit_scratch("torch", [measured(10_000, 4, 0.0, 0.0), measured(100, 400, 0.0, 0.0)])
    assert found.per_weight_byte == found.per_activation_byte == pytest.approx(0.0)


def peaks(base: float, slack: float, model: ModelFacts, batches: list[int]) -> list[MeasuredPeak]:
    found = []
    for batch in batches:
        held = all_kept(model, batch) + 5000
        passes = beyond_kept(model, batch, {}) + all_kept(model, batch)
        peak = held + beyond_kept(model, batch, {}) + base + slack * passes
        found.append(MeasuredPeak(model, batch, peak, held))
    return found


def test_a_base_and_a_share_of_the_passes_are_found_again() -> None:
    fit = fit_memory("torch", peaks(70_000, 0.2, MODEL, [10, 40, 160]))
    assert fit.base_bytes == pytest.approx(70_000)
    assert fit.slack == pytest.approx(0.2)
    assert fit.residual == pytest.approx(0, abs=1e-9)


def test_the_first_model_keeps_its_points_and_others_count_for_the_line() -> None:
    other = ModelFacts((LayerFacts("x", 1, 1, 900),), 100)
    runs = [*peaks(70_000, 0.2, MODEL, [10, 10, 10, 40]), *peaks(70_000, 0.2, other, [50, 60])]
    # Of a batch that was run several times, the middle one.
    for place, chance in enumerate((9_000, 2_000, -1_000)):
        runs[place] = MeasuredPeak(MODEL, 10, runs[place].peak_bytes + chance, runs[place].held_bytes)
    fit = fit_memory("torch", runs)
    assert fit.points is not None
    assert fit.points.sizes == (10, 40)
    passes = beyond_kept(MODEL, 10, {}) + all_kept(MODEL, 10)
    assert fit.points.at(10) == pytest.approx(72_000 + 0.2 * passes)
    assert fit.base_bytes == pytest.approx(70_000, rel=0.05)
