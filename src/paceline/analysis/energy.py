"""Records of one configuration ─► joules and money: per epoch, per 1,000 samples and to the target accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.convergence import epochs_until
from paceline.analysis.statistics import median_or_none
from paceline.record import Epoch, Record

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Expense:
    """Energy and cost of training. Joules are medians over runs with one energy source; None where it is not known."""

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


def summarise_expense(records: Sequence[Record], target: float | None, price: float | None) -> Expense:
    """Summarises the good runs of one configuration that have the same energy source as the newest."""
    newest = next((record.energy for record in reversed(records) if record.energy is not None), None)
    same_source = [record for record in records if record.energy and newest and record.energy.source == newest.source]
    last = [(record, record.epochs[-1]) for record in same_source if record.epochs]
    above = [joules for record, epoch in last if (joules := _above_idle(record, epoch)) is not None]
    per_sample = [epoch.joules / epoch.samples for _, epoch in last if epoch.joules is not None and epoch.samples]
    joules_per_sample = median_or_none(per_sample)
    return Expense(
        energy_source=newest.source if newest else None,
        idle_watts=median_or_none([record.energy.idle_watts for record in same_source if record.energy]),
        watts_per_core=newest.watts_per_core if newest else None,
        joules_per_epoch=median_or_none([epoch.joules for _, epoch in last if epoch.joules is not None]),
        joules_per_epoch_above_idle=median_or_none(above),
        joules_per_1000_samples=None if joules_per_sample is None else joules_per_sample * 1000,
        joules_to_target=_to_target(same_source, target),
        price_per_device_hour=price,
        cost_per_epoch=_cost([record.epochs[-1:] for record in records], records, price),
        cost_to_target=_cost([epochs_until(record, target) for record in records], records, price),
    )


def _above_idle(record: Record, epoch: Epoch) -> float | None:
    if epoch.joules is None or record.energy is None:
        return None
    return max(0.0, epoch.joules - record.energy.idle_watts * epoch.seconds)


def _to_target(records: Sequence[Record], target: float | None) -> float | None:
    """The median joules up to the target accuracy, if every run reached it."""
    reached = [epochs_until(record, target) for record in records]
    if not all(reached) or any(epoch.joules is None for epochs in reached for epoch in epochs):
        return None
    return median_or_none([sum(epoch.joules or 0.0 for epoch in epochs) for epochs in reached])


def _cost(epochs_of_runs: Sequence[Sequence[Epoch]], records: Sequence[Record], price: float | None) -> float | None:
    """Workers x hours x price, the median over runs; each worker uses one device."""
    if price is None or not all(epochs_of_runs):
        return None
    hours = [sum(epoch.seconds for epoch in epochs) / SECONDS_PER_HOUR for epochs in epochs_of_runs]
    return median_or_none([run.spec.workers * spent * price for run, spent in zip(records, hours, strict=True)])
