"""What a strategy makes of a process: a part of the training (`Job`), or a service to those who train."""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from paceline.contract.checkpoint import Checkpoint
from paceline.workloads.base import Weights


@dataclass(frozen=True)
class Evaluation:
    """Sums over the test samples that this process looked at; the parts of all processes add up."""

    samples: int
    loss_sum: float
    # Predictions looked at and right: tokens for language models, None where accuracy has no meaning.
    predictions: int | None
    correct: int | None
    # Metrics of the user's file by name, each times the samples that it was of.
    metric_sums: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GradientSquares:
    """Squared norms of gradients over a part of the batch and over all of it, of each step of an epoch.

    Of several processes each has its own part, and all have the same whole.
    """

    small_batch: int
    big_batch: int
    small_squares: list[float]
    big_squares: list[float]


@dataclass
class InputTimes:
    """What a process's batches cost that are read while it trains, counted up by what reads them; in nanoseconds."""

    # Processes that read for this one; 0 where it reads for itself.
    processes: int = 0
    batches: int = 0
    # In which training stood still for its batches, until they were on the device.
    waited: int = 0
    # Which reading them took, in whichever process; None where that cannot be seen.
    read: int | None = None


class Job(Protocol):
    """One process's part of a training run."""

    # Optimizer steps that one call of `step` may make; above one where a framework runs several per call.
    stride: int

    def clock(self) -> int:
        """Nanoseconds that never go back, the same clock in every process of the run."""

    def align(self) -> None:
        """Waits until every process is here, so that an epoch starts together."""

    def start_epoch(self, epoch: int) -> None:
        """Takes this process's share of the epoch's batches."""

    def step(self, first: int, count: int) -> None:
        """Trains on `count` batches of the epoch from number `first` on; may return before the device is done."""

    def wait(self) -> None:
        """Returns when the device has done all that was asked."""

    def losses(self) -> list[float] | None:
        """The mean loss of this process's share in each step of the epoch, or None if another process has it."""

    def evaluate(self) -> Evaluation | None:
        """The test set, or this process's part of it."""

    def weights(self) -> Weights:
        """The trained weights in the neutral layout (for a user's own model: under its own names)."""

    def checkpoint(self) -> Checkpoint | None:
        """What this process saves in a checkpoint; None where others save all of it."""

    def details(self) -> dict[str, Any]:
        """What the strategy adds to the record, such as thread counts or staleness."""

    def close(self) -> None:
        """Releases everything: destroys groups and closes connections."""


@runtime_checkable
class NoiseJob(Protocol):
    """A job that measures the noise of its gradients."""

    def gradient_squares(self) -> GradientSquares:
        """What it measured in the steps of the epoch."""


@runtime_checkable
class LoadingJob(Protocol):
    """A job that may read its batches while it trains."""

    @property
    def input_times(self) -> InputTimes | None:
        """What that costs; None where all data lie on the device."""


@runtime_checkable
class LiveLoss(Protocol):
    """A job that can tell a loss in the middle of an epoch."""

    def latest_loss(self) -> float | None:
        """The loss of this process's share in the newest step that is done; None if reading it would take waiting."""


@dataclass(frozen=True)
class Share:
    """What a process knows of a step of the epoch: which part of it, how many samples, and which workers trained."""

    part: int
    samples: int
    workers: tuple[int, ...]


@runtime_checkable
class OpenJob(Protocol):
    """A job in a run whose workers come and go one by one."""

    def share(self, place: int) -> Share:
        """What was trained on in the step of that place among the epoch's losses."""


@runtime_checkable
class ResumableJob(Protocol):
    """A job that goes on in new processes, in any number of them, from the checkpoint of one."""

    def whole_checkpoint(self) -> Checkpoint:
        """All that a process needs to go on; the first one saves it, and every one can load it."""


@runtime_checkable
class Service(Protocol):
    """A process that does not train but serves those that do, such as a parameter server."""

    def serve(self) -> None:
        """Returns when the workers have said that they are done."""

    def details(self) -> dict[str, Any]:
        """What the service adds to the record."""

    def close(self) -> None:
        """Releases everything."""
