"""The numbers Paceline reports: each has a name, a unit and a direction, so that nothing is ever ranked backwards."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One reported number."""

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower"]

    def best(self, values: list[float]) -> float:
        """The value to prefer."""
        return max(values) if self.better == "higher" else min(values)


THROUGHPUT = Metric("samples_per_second", "samples/s", "1/s", "higher")
FIRST_EPOCH_THROUGHPUT = Metric("first_epoch_samples_per_second", "samples/s, first epoch", "1/s", "higher")
EPOCH_TIME = Metric("epoch_seconds", "epoch time", "s", "lower")
SPEEDUP = Metric("speedup", "speed-up", "x", "higher")
EFFICIENCY = Metric("efficiency", "scaling efficiency", "1", "higher")
ACCURACY = Metric("test_accuracy", "test accuracy", "1", "higher")
LOSS = Metric("train_loss", "training loss", "1", "lower")
STARTUP_TIME = Metric("startup_seconds", "start-up", "s", "lower")
CPU_TIME = Metric("cpu_seconds_per_step", "CPU time per step", "s", "lower")
PEAK_MEMORY = Metric("peak_memory_bytes", "peak memory per worker", "B", "lower")

METRICS = {
    metric.name: metric
    for metric in (
        THROUGHPUT, FIRST_EPOCH_THROUGHPUT, EPOCH_TIME, SPEEDUP, EFFICIENCY,
        ACCURACY, LOSS, STARTUP_TIME, CPU_TIME, PEAK_MEMORY,
    )
}  # fmt: skip
