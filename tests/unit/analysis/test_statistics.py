"""Statistics against numbers that are known beforehand."""

import random

import pytest

from paceline.analysis.statistics import (
    Interval,
    bootstrap,
    bootstrap_ratio,
    effect_size,
    olympic_mean,
    rank_test,
    variation,
)
from paceline.warm_up import warm_up_steps


def noisy(count: int, seed: int = 1, around: float = 0.1, scatter: float = 0.03) -> list[float]:
    generator = random.Random(seed)
    return [around * generator.gauss(1, scatter) for _ in range(count)]


def test_statistics_of_an_olympic_mean_leave_out_the_best_and_the_worst():
    assert olympic_mean([100.0, 1.0, 2.0, 3.0]) == pytest.approx(2.5)
    assert olympic_mean([1.0, 3.0]) == 2.0
    assert olympic_mean([]) is None


def test_statistics_of_variation_are_deviation_over_mean():
    assert variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert variation([9.0]) is None


def test_statistics_of_one_value_have_no_interval():
    assert bootstrap([1.0]) is None
    assert bootstrap_ratio([1.0], [1.0, 2.0]) is None
    assert rank_test([1.0], [1.0, 2.0]) is None


def test_an_interval_by_statistics_covers_the_truth_about_as_often_as_it_says():
    covered = sum(
        bootstrap(noisy(25, seed=seed, around=1.0, scatter=0.1)).spans(1.0)  # type: ignore[union-attr]
        for seed in range(200)
    )
    assert 0.88 <= covered / 200 <= 0.99


def test_statistics_of_a_ratio_are_around_it_and_repeatable():
    interval = bootstrap_ratio([2.0, 2.1, 1.9, 2.0], [1.0, 1.05, 0.95, 1.0])
    assert interval == bootstrap_ratio([2.0, 2.1, 1.9, 2.0], [1.0, 1.05, 0.95, 1.0])
    assert interval is not None
    assert 1.7 < interval.low < 2.0 < interval.high < 2.3
    assert not interval.spans(1.0)


def test_statistics_of_a_rank_test_are_exact_for_few_values():
    # Of the 20 ways to deal six values into threes, two are as far apart as this.
    assert rank_test([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(2 / 20)


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [([1.0, 2.0], [3.0, 4.0], -1.0), ([3.0, 4.0], [1.0, 2.0], 1.0), ([1.0, 2.0], [1.0, 2.0], 0.0)],
)
def test_statistics_of_effect_go_from_minus_one_to_one(first, second, size):
    assert effect_size(first, second) == size


def test_statistics_find_the_end_of_warm_up():
    steady = noisy(60)
    assert warm_up_steps(steady) == 0
    assert warm_up_steps([3.0, *steady]) == 1
    assert warm_up_steps([value * 1.5 for value in steady[:8]] + steady[8:]) == 8


def test_statistics_call_a_late_slowdown_or_a_stall_no_warm_up():
    steady = noisy(60)
    assert warm_up_steps([*steady, *(value * 1.5 for value in steady[:8])]) == 0
    assert warm_up_steps([*steady[:30], 5.0, *steady[30:]]) == 0


def test_statistics_of_noise_alone_seldom_see_warm_up():
    false = sum(warm_up_steps(noisy(40, seed=seed, scatter=0.1)) > 0 for seed in range(200))
    assert false <= 16


def test_statistics_of_very_few_steps_see_none():
    assert warm_up_steps([3.0, 1.0, 1.0]) == 0


def test_an_interval_of_statistics_knows_what_it_spans():
    assert Interval(0.9, 1.1).spans(1.0)
    assert not Interval(1.01, 1.1).spans(1.0)
