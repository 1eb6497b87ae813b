"""Two calibrations of one machine ─► the less disturbed of each measurement: other load only ever adds to one."""

from collections.abc import Callable, Iterable
from math import inf, log, sqrt
from statistics import mean, median
from typing import TypeVar

from paceline.costs.operations import Operation
from paceline.spec import Frozen
from paceline.systems.hardware import (
    Calibration,
    Collective,
    Curve,
    Hardware,
    LayerScratch,
    MemoryFit,
    Quantity,
    StepCurve,
    StrategyOverhead,
)
from paceline.systems.operation_times import OperationTimes

T = TypeVar("T")


def merge_systems(old: Hardware, new: Hardware) -> Hardware:
    """The new one, with what both say of the machine; of ratios, which err either way, the mean."""
    if old.calibration is None or new.calibration is None:
        return new
    fields: dict[str, object] = {"calibration": merge_calibrations(old.calibration, new.calibration)}
    if _alike(old.calibration, new.calibration):
        fields["interference"] = _mean(old.interference, new.interference)
        fields["straggling"] = _mean(old.straggling, new.straggling)
        if new.kind == "cpu":
            before, after = (system.device.host_seconds_per_operation["eager"] for system in (old, new))
            asking = {"host_seconds_per_operation": {"eager": _mean(before, after)}}
            fields["device"] = new.device.model_copy(update=asking)
    return new.model_copy(update=fields)


def _alike(old: Calibration, new: Calibration) -> bool:
    return (old.machine, old.gpu, old.frameworks) == (new.machine, new.gpu, new.frameworks)


def _mean(old: Quantity, new: Quantity) -> Quantity:
    return new.model_copy(update={"value": (old.value + new.value) / 2, "source": f"{new.source}, and once before"})


def merge_calibrations(old: Calibration, new: Calibration) -> Calibration:
    """The new one, with what the old one measured in less time; and models that only the old one knows."""
    if not _alike(old, new):
        same_machine = [curve for curve in old.steps if old.machine == new.machine]
        return new.model_copy(update={"steps": _joined(same_machine, new.steps, _step, lambda _old, curve: curve)})
    return new.model_copy(
        update={
            "steps": _joined(old.steps, new.steps, _step, _shorter_steps),
            "operation_crowding": {
                count: _mean_factors(old.operation_crowding.get(count, {}), factors)
                for count, factors in {**old.operation_crowding, **new.operation_crowding}.items()
            },
            "crowding": _mean_factors(old.crowding, new.crowding),
            "memory": _joined(old.memory, new.memory, lambda fit: fit.framework, _mean_memory),
            "collectives": _joined(old.collectives, new.collectives, _transfer, _shorter_transfers),
            "overheads": _joined(old.overheads, new.overheads, lambda overhead: overhead.strategy, _mean_overheads),
            "operations": _joined(old.operations, new.operations, _operations, _shorter_operations),
            "replayed": _joined(old.replayed, new.replayed, _operations, _shorter_operations),
            "replayed_calls": {
                call: min(old.replayed_calls.get(call, inf), new.replayed_calls.get(call, inf))
                for call in {**old.replayed_calls, **new.replayed_calls}
            },
            "replayed_batches": {
                digest: tuple(sorted({*old.replayed_batches.get(digest, ()), *new.replayed_batches.get(digest, ())}))
                for digest in {**old.replayed_batches, **new.replayed_batches}
            },
            "replayed_hosts": {**old.replayed_hosts, **new.replayed_hosts},
            "repeat_deviation": _deviation(old, new),
        }
    )


def _deviation(old: Calibration, new: Calibration) -> float:
    """The deviation between runs: from repeats within each calibration, and from the distance between both."""
    differences = [
        abs(log(after / before))
        for earlier in old.steps
        for later in new.steps
        if _step(earlier) == _step(later) and earlier.seconds.sizes == later.seconds.sizes
        for before, after in zip(earlier.seconds.values, later.seconds.values, strict=True)
    ]
    # Of normal numbers half are within 0.6745 deviations, and a difference of two deviates by the root of 2: so the
    # middle of the differences is 0.954 of one deviation.
    apart = [median(differences) / 0.954] if differences else []
    return sqrt(mean(deviation**2 for deviation in (old.repeat_deviation, new.repeat_deviation, *apart)))


def _mean_factors(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    return {name: mean((old.get(name, factor), factor)) for name, factor in new.items()}


def _mean_memory(old: MemoryFit, new: MemoryFit) -> MemoryFit:
    """The mean of both memory fits, where they are of the same model: allocators vary either way."""
    if old.digest != new.digest or old.points is None or new.points is None or old.points.sizes != new.points.sizes:
        return new
    points = [mean(pair) for pair in zip(old.points.values, new.points.values, strict=True)]
    return new.model_copy(
        update={
            **_means(old, new, ("base_bytes", "slack", "residual")),
            "points": Curve.through(new.points.sizes, points),
            "scratch": _joined(old.scratch, new.scratch, lambda rates: rates.kind, _mean_scratch),
        }
    )


def _mean_scratch(old: LayerScratch, new: LayerScratch) -> LayerScratch:
    return new.model_copy(update=_means(old, new, ("per_weight_byte", "per_activation_byte")))


def _means(old: Frozen, new: Frozen, names: Iterable[str]) -> dict[str, float]:
    return {name: (getattr(old, name) + getattr(new, name)) / 2 for name in names}


def _joined(
    old: Iterable[T], new: Iterable[T], identity: Callable[[T], object], merge: Callable[[T, T], T]
) -> tuple[T, ...]:
    """All measurements of both calibrations; those that both have are merged."""
    joined = {identity(measurement): measurement for measurement in old}
    for measurement in new:
        key = identity(measurement)
        joined[key] = merge(joined[key], measurement) if key in joined else measurement
    return tuple(joined.values())


def _step(curve: StepCurve) -> object:
    return curve.framework, curve.digest, curve.precision


def _transfer(measured: Collective) -> object:
    return measured.transport, measured.kind, measured.ranks


def _operations(times: OperationTimes) -> object:
    return times.kind, times.numbers, times.backward, times.sums_rows, times.name


def _shorter_operations(old: OperationTimes, new: OperationTimes) -> OperationTimes:
    """All operations of both, each with its shorter time."""
    shorter: dict[Operation, float] = {}
    for operation, seconds in (*old.rows(), *new.rows()):
        shorter[operation] = min(seconds, shorter.get(operation, seconds))
    return OperationTimes.of_rows(list(shorter.items()))


def _shorter_steps(old: StepCurve, new: StepCurve) -> StepCurve:
    return new.model_copy(update={"seconds": _lower(old.seconds, new.seconds)})


def _shorter_transfers(old: Collective, new: Collective) -> Collective:
    return new.model_copy(update={"curve": _lower(old.curve, new.curve)})


def _mean_overheads(old: StrategyOverhead, new: StrategyOverhead) -> StrategyOverhead:
    """The mean of both overheads, which are differences and so vary either way."""
    both = old.held_per_activation_byte, new.held_per_activation_byte
    waiting = ("waiting_per_message", "waiting_per_long_message")
    names = set(StrategyOverhead.model_fields) - {"strategy", "held_per_activation_byte", *waiting}
    # There is no waiting where other load hid it.
    waited = [overhead for overhead in (old, new) if any(getattr(overhead, name) for name in waiting)] or [new]
    return new.model_copy(
        update={
            **{name: mean(getattr(overhead, name) for overhead in waited) for name in waiting},
            "held_per_activation_byte": {
                digest: mean(rates[digest] for rates in both if digest in rates) for digest in {**both[0], **both[1]}
            },
            **_means(old, new, names),
        }
    )


def _lower(old: Curve, new: Curve) -> Curve:
    """The lower of both curves at each size, where both have the same sizes."""
    if old.sizes != new.sizes:
        return new
    return Curve.through(new.sizes, [min(pair) for pair in zip(old.values, new.values, strict=True)])
