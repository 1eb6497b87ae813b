"""Which batch: steps to a target by batch, its regimes, time to it by workers."""
