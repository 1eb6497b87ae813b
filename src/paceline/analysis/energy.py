"""Records of one configuration ─► joules and money: per epoch, per 1,000 samples and to the target accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.convergence import until
from paceline.analysis.statistics import middle
from paceline.record import Epoch, Record

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Expense:
    """What training took beside time. Joules are medians by one source; None where it was not known."""

    energy_source: str | None = None
    idle_watts: float | None = None
    watts_per_core: float | None = None
    joules_per_epoch: float | None = None
    # Without what the machine would have drawn in that time anyway.
    joules_per_epoch_above_idle: float | None = None
    joules_per_1000_samples: float | None = None
    joules_to_target: float | None = None
    price_per_device_hour: float | None = None
    cost_per_epoch: float | None = None
    cost_to_target: float | None = None


def spent(records: Sequence[Record], target: float | None, price: float | None) -> Expense:
    """From the good runs of one configuration; repeats by another source than the newest one's are left out."""
    newest = next((record.energy for record in reversed(records) if record.energy is not None), None)
    alike = [record for record in records if record.energy and newest and record.energy.source == newest.source]
    last = [(record, record.epochs[-1]) for record in alike if record.epochs]
    above = [joules for record, epoch in last if (joules := _above_idle(record, epoch)) is not None]
    per_sample = [epoch.joules / epoch.samples for _, epoch in last if epoch.joules is not None and epoch.samples]
    each = middle(per_sample)
    return Expense(
        energy_source=newest.source if newest else None,
        idle_watts=middle([record.energy.idle_watts for record in alike if record.energy]),
        watts_per_core=newest.watts_per_core if newest else None,
        joules_per_epoch=middle([epoch.joules for _, epoch in last if epoch.joules is not None]),
        joules_per_epoch_above_idle=middle(above),
        joules_per_1000_samples=None if each is None else each * 1000,
        joules_to_target=_to_target(alike, target),
        price_per_device_hour=price,
        cost_per_epoch=_cost([record.epochs[-1:] for record in records], records, price),
        cost_to_target=_cost([until(record, target) for record in records], records, price),
    )


def _above_idle(record: Record, epoch: Epoch) -> float | None:
    if epoch.joules is None or record.energy is None:
        return None
    return max(0.0, epoch.joules - record.energy.idle_watts * epoch.seconds)


def _to_target(records: Sequence[Record], target: float | None) -> float | None:
    """The median, if every run got there."""
    ways = [until(record, target) for record in records]
    if not all(ways) or any(epoch.joules is None for way in ways for epoch in way):
        return None
    return middle([sum(epoch.joules or 0.0 for epoch in way) for way in ways])


def _cost(ways: Sequence[Sequence[Epoch]], records: Sequence[Record], price: float | None) -> float | None:
    """Devices x hours x price, the median over runs; a device is a worker's."""
    if price is None or not all(ways):
        return None
    hours = [sum(epoch.seconds for epoch in way) / SECONDS_PER_HOUR for way in ways]
    return middle([record.spec.workers * one * price for record, one in zip(records, hours, strict=True)])
