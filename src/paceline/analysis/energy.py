"""Good runs of one configuration ─► joules and money: per epoch, per 1,000 samples and to the target accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.convergence import EpochOutcome, RunOutcome
from paceline.analysis.statistics import median_or_none

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
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


def summarise_expense(runs: Sequence[RunOutcome], target: float | None, price: float | None) -> Expense:
    """Summarises the good runs of one configuration that have the same energy source as the newest."""
    newest = next((run for run in reversed(runs) if run.energy_source is not None), None)
    same_source = [run for run in runs if newest and run.energy_source == newest.energy_source]
    last = [(run, run.epochs[-1]) for run in same_source if run.epochs]
    above = [joules for run, epoch in last if (joules := _above_idle(run, epoch)) is not None]
    per_sample = [epoch.joules / epoch.samples for _, epoch in last if epoch.joules is not None and epoch.samples]
    joules_per_sample = median_or_none(per_sample)
    return Expense(
        energy_source=newest.energy_source if newest else None,
        idle_watts=median_or_none([run.idle_watts for run in same_source]),
        watts_per_core=newest.watts_per_core if newest else None,
        joules_per_epoch=median_or_none([epoch.joules for _, epoch in last if epoch.joules is not None]),
        joules_per_epoch_above_idle=median_or_none(above),
        joules_per_1000_samples=None if joules_per_sample is None else joules_per_sample * 1000,
        joules_to_target=_to_target(same_source, target),
        price_per_device_hour=price,
        cost_per_epoch=_cost([run.epochs[-1:] for run in runs], runs, price),
        cost_to_target=_cost([run.epochs_until(target) for run in runs], runs, price),
    )


def _above_idle(run: RunOutcome, epoch: EpochOutcome) -> float | None:
    return None if epoch.joules is None else max(0.0, epoch.joules - run.idle_watts * epoch.seconds)


def _to_target(runs: Sequence[RunOutcome], target: float | None) -> float | None:
    """The median joules up to the target accuracy, if every run reached it."""
    reached = [run.epochs_until(target) for run in runs]
    if not all(reached) or any(epoch.joules is None for epochs in reached for epoch in epochs):
        return None
    return median_or_none([sum(epoch.joules or 0.0 for epoch in epochs) for epochs in reached])


def _cost(
    epochs_of_runs: Sequence[Sequence[EpochOutcome]], runs: Sequence[RunOutcome], price: float | None
) -> float | None:
    """Workers x hours x price, the median over runs; each worker uses one device."""
    if price is None or not all(epochs_of_runs):
        return None
    hours = [sum(epoch.seconds for epoch in epochs) / SECONDS_PER_HOUR for epochs in epochs_of_runs]
    return median_or_none([run.workers * spent * price for run, spent in zip(runs, hours, strict=True)])
