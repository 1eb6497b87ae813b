"""What "best" may mean: each objective as a number of a prediction, with its direction."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from paceline.catalogue import choose
from paceline.predict.estimate import Estimate
from paceline.predict.prediction import Prediction
from paceline.units import format_about, format_bytes, format_seconds

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Metric:
    """One reported number, with a unit and a direction, so that none is ranked backwards."""

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower"]


THROUGHPUT = Metric("samples_per_second", "samples/s", "1/s", "higher")
EPOCH_TIME = Metric("epoch_seconds", "epoch time", "s", "lower")
PROGRESS_TIME = Metric("progress_seconds", "time per epoch of progress", "s", "lower")
PEAK_MEMORY = Metric("peak_memory_bytes", "peak memory per worker", "B", "lower")
ENERGY = Metric("joules_per_epoch", "energy per epoch", "J", "lower")
COST = Metric("cost_per_epoch", "cost per epoch", "money", "lower")


@dataclass(frozen=True)
class Objective:
    """A number to be as large, or as small, as can be."""

    name: str
    metric: Metric
    of: Callable[[Prediction], Estimate]
    text: Callable[[float], str]
    about: str

    def better(self, first: float, second: float) -> bool:
        """Whether the first value is to be preferred."""
        return first > second if self.metric.better == "higher" else first < second

    def worse_by(self, value: float, best: float) -> float:
        """How much worse a value is than the best: 0.1 where it takes a tenth more time, energy, money or memory."""
        return best / value - 1 if self.metric.better == "higher" else value / best - 1


def counting_samples(goal: Objective) -> Objective:
    """Time to accuracy where the samples that a batch needs more are counted: an epoch is one of tiny batches."""
    return replace(
        goal, metric=PROGRESS_TIME, text=lambda value: f"{format_seconds(value)} per epoch of progress",
        about="least time until the model is good enough; an epoch of progress is what one of tiny batches brings",
    )  # fmt: skip


def _cost(prediction: Prediction) -> Estimate:
    """The cost of an epoch; without a price, device-hours, which rank the same."""
    return prediction.cost_per_epoch or prediction.epoch_seconds.times(prediction.devices / SECONDS_PER_HOUR)


OBJECTIVES = {
    goal.name: goal
    for goal in (
        Objective("throughput", THROUGHPUT, lambda prediction: prediction.samples_per_second,
                  lambda value: f"{format_about(value)} samples/s", "most samples in a second"),
        Objective("time-to-accuracy", EPOCH_TIME, lambda prediction: prediction.epoch_seconds,
                  lambda value: f"{format_seconds(value)} per epoch", "least time until the model is good enough"),
        Objective("energy", ENERGY, lambda prediction: prediction.joules_per_epoch,
                  lambda value: f"{format_about(value)} J per epoch", "fewest joules for an epoch"),
        Objective("cost", COST, _cost, lambda value: f"{value:.3g} per epoch", "least money for an epoch"),
        Objective("memory", PEAK_MEMORY, lambda prediction: prediction.memory_bytes,
                  lambda value: f"{format_bytes(value)} per worker", "fewest bytes on a worker"),
    )
}  # fmt: skip


def objective(name: str) -> Objective:
    """The objective of that name."""
    return choose(name, OBJECTIVES, "objective")
