"""The gradient noise scale: made-up gradients whose noise is known give it back."""

import numpy as np
import pytest

from paceline.costs.noise_scale import (
    noise_interval,
    noise_scale,
    sample_variance,
    statistical_efficiency,
    true_square,
)

PARAMETERS, STEPS = 40, 3000


def squares(gradient: np.ndarray, deviation: float, small: int, big: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared norms of mean gradients over `small` and over `big` samples, which have the small ones, of each step."""
    random = np.random.default_rng(3)
    parts = gradient + random.normal(0, deviation / np.sqrt(small), (STEPS, big // small, PARAMETERS))
    return np.square(parts).sum(axis=2).mean(axis=1), np.square(parts.mean(axis=1)).sum(axis=1)


@pytest.mark.parametrize(("small", "big"), [(8, 32), (32, 64), (64, 512)])
def test_a_known_noise_scale_is_found_from_gradients_over_two_batches(small: int, big: int) -> None:
    gradient, deviation = np.full(PARAMETERS, 0.5), 4.0
    known = PARAMETERS * deviation**2 / (PARAMETERS * 0.25)
    small_squares, big_squares = squares(gradient, deviation, small, big)
    means = float(small_squares.mean()), float(big_squares.mean())
    assert true_square(small, big, *means) == pytest.approx(PARAMETERS * 0.25, rel=0.05)
    assert sample_variance(small, big, *means) == pytest.approx(PARAMETERS * 16, rel=0.05)
    assert noise_scale(small, big, *means) == pytest.approx(known, rel=0.1)
    low, high = noise_interval(small, big, small_squares.tolist(), big_squares.tolist())
    assert low is not None and high is not None
    assert low < known < high
    assert high / low < 1.5


@pytest.mark.parametrize("steps", [12, 39, 200])
@pytest.mark.parametrize("known", [50, 500, 5000])
def test_nine_of_ten_intervals_hold_a_known_noise_scale(steps: int, known: int) -> None:
    """Where the noise is too large for so few steps, most of them have no upper end."""
    random, held, trials = np.random.default_rng(known + steps), 0, 200
    for _ in range(trials):
        parts = 1 / np.sqrt(known) + random.normal(0, 1 / np.sqrt(64), (steps, 2, PARAMETERS))
        small, big = np.square(parts).sum(axis=2).mean(axis=1), np.square(parts.mean(axis=1)).sum(axis=1)
        low, high = noise_interval(64, 128, small.tolist(), big.tolist())
        held += (low or 0) <= known <= (np.inf if high is None else high)
    assert 0.84 < held / trials < 0.97


def test_a_gradient_that_is_lost_in_its_noise_has_no_noise_scale_and_no_upper_end() -> None:
    small_squares, big_squares = squares(np.zeros(PARAMETERS), 4.0, 8, 16)
    low, high = noise_interval(8, 16, small_squares.tolist()[:60], big_squares.tolist()[:60])
    assert low is None or low > 0
    assert high is None


def test_gradients_without_noise_have_none() -> None:
    assert noise_scale(8, 32, 1.0, 1.0) is None
    assert noise_interval(8, 32, [1.0] * 50, [1.0] * 50) == (0.0, 0.0)


def test_too_few_steps_give_no_interval() -> None:
    assert noise_interval(8, 32, [2.0], [1.0]) == (None, None)


def test_a_sample_is_worth_half_in_a_batch_as_large_as_the_noise_beside_a_very_small_one() -> None:
    assert statistical_efficiency(noise=100, batch=100, reference_batch=1e-9) == pytest.approx(0.5)
    assert statistical_efficiency(noise=100, batch=64, reference_batch=64) == 1.0
    assert statistical_efficiency(noise=1e9, batch=512, reference_batch=64) == pytest.approx(1.0, rel=1e-3)
