"""Timed operations, and steps of small models ─► what operations take within models, and what asking for one takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.calibrate.gpu.fit import efficiencies, grid_of
from paceline.calibrate.gpu.messages import TimedOperation
from paceline.costs.footprint import ModelFacts
from paceline.costs.layer_operations import model_operations
from paceline.predict.operations import OperationTimer
from paceline.predict.steps import BESIDE
from paceline.spec import Optimizer
from paceline.systems.hardware import Device, Hardware, Quantity


@dataclass(frozen=True)
class ModelTiming:
    """A step of a whole model on one core."""

    model: ModelFacts
    batch: float
    seconds: float


def with_operations(hardware: Hardware, timed: Sequence[TimedOperation], source: str) -> Hardware:
    """The system with a grid of operations, and with how close to its data sheet they come."""
    calibration = hardware.calibrated.model_copy(update={"operations": grid_of(timed)})
    device = hardware.device.model_copy(update=efficiencies(timed, hardware.device, source))
    if timed:
        # What an operation takes in which there is next to nothing to compute, as a product that would take as long.
        rate = device.product_efficiency.value * max(peak.value for peak in device.flops_per_second.values())
        half_rate = Quantity(value=rate * min(row.seconds for row in timed), source=source)
        device = device.model_copy(update={"half_rate_flops": half_rate})
    return hardware.model_copy(update={"device": device, "calibration": calibration})


def within_models(hardware: Hardware, models: Sequence[ModelTiming], source: str) -> Hardware:
    """The system with operations as long as they take within models, and with what a core takes to ask for one.

    Two costs that are not below zero explain the models' steps best: a factor for operations that were timed by
    themselves, and seconds for each. Long steps weigh more than short ones, which stay in the caches, but less than by
    their seconds: an error counts relative to the root of these.
    """
    import numpy as np
    from scipy.optimize import nnls

    device = hardware.device
    timer = OperationTimer(hardware.model_copy(update={"device": _asked_in(device, 0.0, source)}))
    rows = np.array([[*_sums(timing, timer), timing.seconds] for timing in models])
    scale = rows[:, :2].max(axis=0)
    roots = np.sqrt(rows[:, 2])
    costs, _ = nnls(rows[:, :2] / scale / roots[:, None], roots)
    factor, asking = (float(cost) for cost in costs / scale)
    operations = tuple(
        times.model_copy(update={"seconds": tuple(seconds * factor for seconds in times.seconds)})
        for times in hardware.calibrated.operations
    )
    calibration = hardware.calibrated.model_copy(update={"operations": operations})
    return hardware.model_copy(update={"device": _asked_in(device, asking, source), "calibration": calibration})


def _asked_in(device: Device, seconds: float, source: str) -> Device:
    return device.model_copy(update={"host_seconds_per_operation": {"eager": Quantity(value=seconds, source=source)}})


def _sums(timing: ModelTiming, timer: OperationTimer) -> tuple[float, float]:
    """Seconds of all operations of a step, and how many there are."""
    step = model_operations(timing.model, timing.batch, "fp32", Optimizer())
    operations = [*step.update]
    for layer in step.layers:
        operations += [*layer.forward, *layer.backward]
    seconds = sum(timer.timed(operation).seconds * operation.count for operation in operations)
    return seconds, BESIDE + sum(operation.count for operation in operations)


def crowding_by_kind(alone: Sequence[TimedOperation], together: Sequence[TimedOperation]) -> dict[str, float]:
    """How much longer operations of each kind take when other cores compute the same: the middle one of each kind."""
    ratios: dict[str, list[float]] = {}
    alone_seconds = {timed.operation: timed.seconds for timed in alone}
    for timed in together:
        if timed.operation in alone_seconds:
            ratios.setdefault(timed.operation.kind, []).append(timed.seconds / alone_seconds[timed.operation])
    return {kind: max(1.0, median(factors)) for kind, factors in ratios.items()}
