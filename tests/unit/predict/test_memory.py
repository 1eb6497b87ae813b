"""The peak of a step by hand, and what allocators keep of larger batches."""

import pytest

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.predict.memory import all_kept, beyond_kept, kept_by_allocator
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


def test_beyond_the_measured_batches_the_line_goes_on_and_never_falls() -> None:
    points = Curve.through([10.0, 20.0, 40.0, 80.0], [100.0, 200.0, 400.0, 1600.0])
    assert kept_by_allocator(points, 80) == pytest.approx(1600)
    assert kept_by_allocator(points, 81) == 1600
    line = points.fixed + points.slope * 800
    assert 1600 < line < points.at(800)
    assert kept_by_allocator(points, 800) == pytest.approx(line)
