"""Two calibrations of one machine ─► the calmer of each measurement: other programs only ever make one longer."""

from collections.abc import Callable, Iterable, Sequence
from math import log, sqrt
from statistics import mean, median
from typing import TypeVar

from paceline.spec import Frozen
from paceline.systems.hardware import (
    Calibration,
    Collective,
    Curve,
    Hardware,
    LayerRate,
    LayerScratch,
    MemoryFit,
    Quantity,
    StepCurve,
    StrategyOverhead,
)

T = TypeVar("T")


def calmer_of(old: Hardware, new: Hardware) -> Hardware:
    """The new one, with what both say of the machine; of ratios, which err either way, the middle."""
    if old.calibration is None or new.calibration is None:
        return new
    found: dict[str, object] = {"calibration": calmest(old.calibration, new.calibration)}
    if _alike(old.calibration, new.calibration):
        found["interference"] = _middle(old.interference, new.interference)
        found["straggling"] = _middle(old.straggling, new.straggling)
    return new.model_copy(update=found)


def _alike(old: Calibration, new: Calibration) -> bool:
    return (old.machine, old.frameworks) == (new.machine, new.frameworks)


def _middle(old: Quantity, new: Quantity) -> Quantity:
    return new.model_copy(update={"value": (old.value + new.value) / 2, "source": f"{new.source}, and once before"})


def calmest(old: Calibration, new: Calibration) -> Calibration:
    """The new one, with what the old one measured in less time; and models that only the old one knows."""
    if not _alike(old, new):
        kept = [curve for curve in old.steps if old.machine == new.machine]
        return new.model_copy(update={"steps": _joined(kept, new.steps, _step, lambda _old, own: own)})
    layers = _joined(old.layers, new.layers, lambda one: (one.framework, one.kind), _calmer_layers)
    return new.model_copy(
        update={
            "steps": _joined(old.steps, new.steps, _step, _calmer_steps),
            "layers": layers,
            "layer_crowding": _crowding(old, new),
            "crowding": {cores: mean((old.crowding.get(cores, one), one)) for cores, one in new.crowding.items()},
            "memory": _joined(old.memory, new.memory, lambda one: one.framework, _middle_memory),
            "collectives": _joined(
                old.collectives, new.collectives, lambda one: (one.transport, one.kind, one.ranks), _calmer_transfers
            ),
            "overheads": _joined(old.overheads, new.overheads, lambda one: one.strategy, _middle_overheads),
            "optimizer_seconds_per_parameter": _least(
                old.optimizer_seconds_per_parameter, new.optimizer_seconds_per_parameter
            ),
            "step_overhead_seconds": _least(old.step_overhead_seconds, new.step_overhead_seconds),
            "startup_seconds": _least(old.startup_seconds, new.startup_seconds),
            "repeat_deviation": _deviation(old, new),
        }
    )


def _deviation(old: Calibration, new: Calibration) -> float:
    """Of a run at another time: as repeats within each of them say, and as both lie apart, all three counting alike."""
    pairs = [
        abs(log(after / before))
        for one in old.steps
        for other in new.steps
        if _step(one) == _step(other) and one.seconds.sizes == other.seconds.sizes
        for before, after in zip(one.seconds.values, other.seconds.values, strict=True)
    ]
    # Of normal numbers half are within 0.6745 deviations, and a difference of two deviates by the root of 2: so the
    # middle of the differences is 0.954 of one deviation.
    apart = [median(pairs) / 0.954] if pairs else []
    return sqrt(mean(one**2 for one in (old.repeat_deviation, new.repeat_deviation, *apart)))


def _crowding(old: Calibration, new: Calibration) -> dict[str, float]:
    """The calmest time on all cores at once over the calmest on one."""
    found = {}
    for kind, factor in {**old.layer_crowding, **new.layer_crowding}.items():
        alone, together = [], []
        for one in (old, new):
            timed = sum(rate.timed_seconds for rate in one.layers if rate.kind == kind)
            alone += [timed] if timed else []
            together += [timed * one.layer_crowding[kind]] if timed and kind in one.layer_crowding else []
        found[kind] = max(1.0, min(together) / min(alone)) if together else factor
    return found


def _middle_memory(old: MemoryFit, new: MemoryFit) -> MemoryFit:
    """What an allocator keeps is chance, either way: the middle of both, where they are of the same model."""
    if old.digest != new.digest or old.points is None or new.points is None or old.points.sizes != new.points.sizes:
        return new
    points = [mean(pair) for pair in zip(old.points.values, new.points.values, strict=True)]
    return new.model_copy(
        update={
            **_means(old, new, ("base_bytes", "slack", "residual")),
            "points": Curve.through(new.points.sizes, points),
            "scratch": _joined(old.scratch, new.scratch, lambda one: one.kind, _middle_scratch),
        }
    )


def _middle_scratch(old: LayerScratch, new: LayerScratch) -> LayerScratch:
    return new.model_copy(update=_means(old, new, ("per_weight_byte", "per_activation_byte")))


def _means(old: Frozen, new: Frozen, names: Iterable[str]) -> dict[str, float]:
    return {name: (getattr(old, name) + getattr(new, name)) / 2 for name in names}


def _joined(
    old: Iterable[T], new: Iterable[T], identity: Callable[[T], object], calmer: Callable[[T, T], T]
) -> tuple[T, ...]:
    """What is in either; the calmer of what is in both."""
    found = {identity(one): one for one in old}
    for one in new:
        place = identity(one)
        found[place] = calmer(found[place], one) if place in found else one
    return tuple(found.values())


def _step(curve: StepCurve) -> object:
    return curve.framework, curve.digest, curve.precision


def _calmer_steps(old: StepCurve, new: StepCurve) -> StepCurve:
    return new.model_copy(update={"seconds": _lower(old.seconds, new.seconds)})


def _calmer_transfers(old: Collective, new: Collective) -> Collective:
    return new.model_copy(update={"curve": _lower(old.curve, new.curve)})


def _calmer_layers(old: LayerRate, new: LayerRate) -> LayerRate:
    return old if 0 < old.timed_seconds < new.timed_seconds else new


def _middle_overheads(old: StrategyOverhead, new: StrategyOverhead) -> StrategyOverhead:
    """What is left over when the rest is taken away errs either way: the middle of both."""
    waiting = ("waiting_per_message", "waiting_per_long_message")
    names = set(StrategyOverhead.model_fields) - {"strategy", "held_per_activation_byte", *waiting}
    # Waiting is none where other programs hid it.
    waited = [one for one in (old, new) if any(getattr(one, name) for name in waiting)] or [new]
    return new.model_copy(
        update={
            **{name: mean(getattr(one, name) for one in waited) for name in waiting},
            "held_per_activation_byte": {
                digest: mean(
                    one.held_per_activation_byte[digest] for one in (old, new) if digest in one.held_per_activation_byte
                )
                for digest in {**old.held_per_activation_byte, **new.held_per_activation_byte}
            },
            **_means(old, new, names),
        }
    )


def _lower(old: Curve, new: Curve) -> Curve:
    """Point by point, where both were measured at the same sizes."""
    if old.sizes != new.sizes:
        return new
    return Curve.through(new.sizes, _smaller(old.values, new.values), _smaller(old.cpu_seconds, new.cpu_seconds))


def _smaller(old: Sequence[float], new: Sequence[float]) -> list[float]:
    return [min(pair) for pair in zip(old, new, strict=True)] if len(old) == len(new) else list(new)


def _least(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    return {name: min(value, old.get(name, value)) for name, value in {**old, **new}.items()}
