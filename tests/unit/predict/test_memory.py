"""The peak of a step by hand, and costs that are known found again."""

import pytest

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.memory import (
    MeasuredPeak,
    MeasuredScratch,
    all_kept,
    beyond_kept,
    fit_memory,
    fit_scratch,
    kept_by_allocator,
)
from paceline.systems.hardware import Curve, LayerScratch

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


def test_a_backward_pass_frees_what_it_has_used_while_gradients_fill() -> None:
    # With many samples the second layer is the worst: input, what the first keeps, its own 30, and both gradients.
    samples = 1000
    worst = samples * (10 + 100 + 30 + 20 + 100) + 900
    assert beyond_kept(MODEL, samples, {}) + all_kept(MODEL, samples) == 4 * worst
    # Where parameters are most of all it is the first, when all gradients are there; its input needs none.
    heavy = ModelFacts((LayerFacts("x", 900, 1, 2), LayerFacts("y", 1, 1, 3)), 10)
    assert beyond_kept(heavy, 1, {}) + all_kept(heavy, 1) == 4 * (10 + 2 + 901)


def test_a_model_that_keeps_little_of_what_it_makes_peaks_at_its_loss() -> None:
    model = ModelFacts((LayerFacts("x", 1, 1, 3), LayerFacts("y", 1, 1, 1000)), 5)
    assert beyond_kept(model, 10, {}) == 4 * (10 * 2000 - 2)


def test_what_libraries_take_counts_where_they_take_it() -> None:
    scratch = {"convolution": LayerScratch(framework="torch", kind="convolution", per_weight_byte=2.0,
                                           per_activation_byte=3.0)}  # fmt: skip
    # The first layer's passes are the worst now: its input, its gradient, three times what it is given and keeps.
    expected = 10 + 100 + 3 * 110
    found = beyond_kept(MODEL, 1000, scratch) + all_kept(MODEL, 1000)
    assert found == 4 * (1000 * expected + 905 + 2 * 5)


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


def test_beyond_the_measured_batches_the_line_goes_on_and_never_falls() -> None:
    points = Curve.through([10.0, 20.0, 40.0, 80.0], [100.0, 200.0, 400.0, 1600.0])
    assert kept_by_allocator(points, 80) == pytest.approx(1600)
    assert kept_by_allocator(points, 81) == 1600
    line = points.fixed + points.slope * 800
    assert 1600 < line < points.at(800)
    assert kept_by_allocator(points, 800) == pytest.approx(line)
