"""Labels that keep apart, and axes for values far apart."""

from itertools import pairwise

import pytest

from paceline.figures.marks import LINE_HEIGHT, is_wide, space_labels

HEIGHT = 10 * LINE_HEIGHT


def test_labels_with_room_stay_where_their_lines_end():
    assert space_labels({"a": 0.0, "b": 50.0}, HEIGHT, (0.0, 100.0)) == {"a": 0.0, "b": 50.0}


def test_labels_that_would_touch_are_spread_around_their_middle():
    assert space_labels({"a": 50.0, "b": 50.0, "far": 90.0}, HEIGHT, (0.0, 100.0)) == {
        "a": 45.0,
        "b": 55.0,
        "far": 90.0,
    }


def test_bundles_that_would_touch_become_one():
    placed = space_labels({"a": 50.0, "b": 50.0, "c": 58.0}, HEIGHT, (0.0, 100.0))
    places = sorted(placed.values())
    assert [after - before for before, after in pairwise(places)] == pytest.approx([10.0, 10.0])
    assert sum(places) == pytest.approx(158.0)


def test_on_a_logarithmic_axis_labels_are_spread_by_ratios():
    placed = space_labels({"a": 10.0, "b": 10.0}, HEIGHT, (1.0, 10.0**10), wide=True)
    assert placed["b"] / placed["a"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("values", "wide"), [([1.0, 2.0], False), ([1.0, 40.0], True), ([], False), ([0.0, 1.0], False)]
)
def test_only_values_far_apart_need_a_logarithmic_axis(values, wide):
    assert is_wide(values) is wide
