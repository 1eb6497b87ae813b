"""Which samples are in which batch: one permutation for every framework and strategy, another in each epoch.

An epoch has `samples // global_batch` steps and drops the samples left over. Copies of the data set are repeated
indices, not repeated memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchOrder:
    """The order of samples for a run."""

    samples: int
    copies: int
    global_batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in one epoch."""
        return self.samples * self.copies // self.global_batch

    def epoch(self, epoch: int) -> Indices:
        """Sample indices of an epoch, one row per step."""
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        permutation = generator.permutation(self.samples * self.copies)
        used = self.steps_per_epoch * self.global_batch
        return (permutation[:used] % self.samples).reshape(self.steps_per_epoch, self.global_batch).astype(np.int64)

    def share(self, epoch: int, replica: int, replicas: int) -> Indices:
        """The part of every global batch that one of `replicas` equal replicas reads."""
        local = self.global_batch // replicas
        return np.ascontiguousarray(self.epoch(epoch)[:, replica * local : (replica + 1) * local])

    def schedule(self, epochs: int | None, steps: int | None) -> Iterator[tuple[int, int]]:
        """(epoch, steps in it) until the run has done all its epochs or steps."""
        if epochs is not None:
            yield from ((epoch, self.steps_per_epoch) for epoch in range(epochs))
            return
        epoch, steps_left = 0, steps or 0
        while steps_left > 0:
            yield epoch, min(steps_left, self.steps_per_epoch)
            epoch, steps_left = epoch + 1, steps_left - self.steps_per_epoch
