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
        """The best of the values."""
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
ENERGY = Metric("joules_per_epoch", "energy per epoch", "J", "lower")
ENERGY_ABOVE_IDLE = Metric("joules_per_epoch_above_idle", "energy per epoch above idle", "J", "lower")
ENERGY_PER_SAMPLES = Metric("joules_per_1000_samples", "energy per 1,000 samples", "J", "lower")
ENERGY_TO_TARGET = Metric("joules_to_target", "energy to the target accuracy", "J", "lower")
COST = Metric("cost_per_epoch", "cost per epoch", "money", "lower")
COST_TO_TARGET = Metric("cost_to_target", "cost to the target accuracy", "money", "lower")
TIME_TO_TARGET = Metric("seconds_to_target", "time to the target accuracy", "s", "lower")
EPOCHS_TO_TARGET = Metric("epochs_to_target", "epochs to the target accuracy", "1", "lower")
STALENESS = Metric("staleness_mean", "mean staleness", "updates", "lower")
OWN_MEMORY = Metric("memory_peak_bytes", "peak memory above the framework's own", "B", "lower")

METRICS = {
    metric.name: metric
    for metric in (
        THROUGHPUT, FIRST_EPOCH_THROUGHPUT, EPOCH_TIME, SPEEDUP, EFFICIENCY,
        ACCURACY, LOSS, STARTUP_TIME, CPU_TIME, PEAK_MEMORY,
        ENERGY, ENERGY_ABOVE_IDLE, ENERGY_PER_SAMPLES, ENERGY_TO_TARGET, COST, COST_TO_TARGET,
        TIME_TO_TARGET, EPOCHS_TO_TARGET, STALENESS, OWN_MEMORY,
    )
}  # fmt: skip
