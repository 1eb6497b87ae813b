"""The gradient noise scale: from how many samples on a larger batch stops making its gradient much better.

McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1: squared norms of gradients over two
batch sizes tell the squared norm of the true gradient and the variance of a single sample's. Their ratio is the simple
noise scale, which is close to the critical batch.
"""

from collections.abc import Sequence

import numpy as np

# The share of intervals that hold the true number.
COVERED = 0.9
# Steps in a row are taken together for it: gradients of neighbours are alike.
BLOCK_STEPS = 10


def true_square(small_batch: float, big_batch: float, small_square: float, big_square: float) -> float:
    """The squared norm of the true gradient, from mean squared norms over batches of two sizes; may be negative."""
    return (big_batch * big_square - small_batch * small_square) / (big_batch - small_batch)


def sample_variance(small_batch: float, big_batch: float, small_square: float, big_square: float) -> float:
    """The variance of a single sample's gradient, summed over parameters; may be negative."""
    return (small_square - big_square) / (1 / small_batch - 1 / big_batch)


def noise_scale(small_batch: float, big_batch: float, small_square: float, big_square: float) -> float | None:
    """Variance over squared gradient, in samples; None where too few steps were averaged for either to be positive."""
    square = true_square(small_batch, big_batch, small_square, big_square)
    variance = sample_variance(small_batch, big_batch, small_square, big_square)
    return variance / square if square > 0 and variance > 0 else None


def noise_interval(
    small_batch: float, big_batch: float, small_squares: Sequence[float], big_squares: Sequence[float]
) -> tuple[float | None, float | None]:
    """Where the noise scale of these steps lies; an end is None where it is not known or unbounded.

    Fieller, "Some Problems in Interval Estimation", 1954: all ratios that the means of two numbers, measured together
    several times, do not speak against by Student's t. Measured together are blocks of steps.
    """
    from scipy.special import stdtrit

    pairs = np.array([small_squares, big_squares], float)
    steps = pairs.shape[1]
    block = min(BLOCK_STEPS, max(1, steps // BLOCK_STEPS))
    blocks = steps // block
    if blocks < 2:
        return None, None
    small, big = pairs[:, : blocks * block].reshape(2, blocks, block).mean(axis=2)
    measured = np.stack([sample_variance(small_batch, big_batch, small, big),
                         true_square(small_batch, big_batch, small, big)])  # fmt: skip
    (variance, square), spread = measured.mean(axis=1), np.cov(measured)
    chance = float(stdtrit(blocks - 1, (1 + COVERED) / 2)) ** 2 / blocks
    # The ratios are those at which a x ratio^2 - 2 b x ratio + c is not above zero.
    a = square**2 - chance * spread[1, 1]
    b = variance * square - chance * spread[0, 1]
    c = variance**2 - chance * spread[0, 0]
    root = float(np.sqrt(max(0.0, b**2 - a * c)))
    if a <= 0 or square <= 0:
        # The gradient may be nothing: any ratio from one on, or any at all where the noise may be nothing too.
        low = (b - root) / a if a < 0 < c and variance > 0 else 0.0
        return max(0.0, float(low)), None
    return max(0.0, float((b - root) / a)), max(0.0, float((b + root) / a))


def statistical_efficiency(noise: float, batch: float, reference_batch: float) -> float:
    """What a sample in a batch of one size is worth of one in a batch of another: Qiao et al., "Pollux", OSDI 2021."""
    return (noise + reference_batch) / (noise + batch)
