"""The numbers that strategies are ranked by, each with a unit and a direction, so that none is ranked backwards."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One reported number."""

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower"]


THROUGHPUT = Metric("samples_per_second", "samples/s", "1/s", "higher")
EPOCH_TIME = Metric("epoch_seconds", "epoch time", "s", "lower")
PEAK_MEMORY = Metric("peak_memory_bytes", "peak memory per worker", "B", "lower")
ENERGY = Metric("joules_per_epoch", "energy per epoch", "J", "lower")
COST = Metric("cost_per_epoch", "cost per epoch", "money", "lower")
