"""The gradient noise scale: from how many samples on a larger batch stops making its gradient much better.

McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1: squared norms of gradients over two
batch sizes tell the squared norm of the true gradient and the variance of a single sample's. Their ratio is the simple
noise scale, which is close to the critical batch.
"""

from collections.abc import Sequence

import numpy as np

# Resampled means for the interval, and the share of them that it covers.
RESAMPLES, COVERED = 400, 0.9
# Steps in a row stay together when they are resampled: gradients of neighbours are alike.
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
    """Where the noise scale of these steps lies, by resampled blocks of them; an end is None where it is unbounded."""
    pairs = np.array([small_squares, big_squares], float)
    steps = pairs.shape[1]
    block = min(BLOCK_STEPS, max(1, steps // BLOCK_STEPS))
    blocks = steps // block
    if blocks < 2:
        return None, None
    sums = pairs[:, : blocks * block].reshape(2, blocks, block).mean(axis=2)
    chosen = np.random.default_rng(0).integers(0, blocks, (RESAMPLES, blocks))
    means = sums[:, chosen].mean(axis=2)
    scales = [noise_scale(small_batch, big_batch, small, big) for small, big in means.T]
    # Without a positive gradient the noise scale is larger than can be told; without a positive variance, smaller.
    ordered = np.sort([np.inf if scale is None and small > big else 0.0 if scale is None else scale
                       for scale, (small, big) in zip(scales, means.T, strict=True)])  # fmt: skip
    outside = (1 - COVERED) / 2
    low, high = (float(ordered[round(share * (RESAMPLES - 1))]) for share in (outside, 1 - outside))
    return (low if np.isfinite(low) else None), (high if np.isfinite(high) else None)


def statistical_efficiency(noise: float, batch: float, reference_batch: float) -> float:
    """What a sample in a batch of one size is worth of one in a batch of another: Qiao et al., "Pollux", OSDI 2021."""
    return (noise + reference_batch) / (noise + batch)
