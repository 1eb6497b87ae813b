"""Records ─► one row per configuration: medians over repeats, speed-up and efficiency against one worker."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.analysis.convergence import Convergence, converged, default_target
from paceline.analysis.energy import Expense, spent
from paceline.analysis.epochs import EpochSummary, epoch_summaries
from paceline.analysis.labels import setting
from paceline.analysis.memory import RankMemory, rank_memory
from paceline.analysis.statistics import Interval, bootstrap, middle, olympic_mean, spread, variation
from paceline.breakdown import RankBreakdown
from paceline.record import Epoch, Record, Status
from paceline.spec import RunSpec
from paceline.strategies import strategies

OVERSUBSCRIBED = "oversubscribed"


@dataclass(frozen=True)
class Row:
    """One configuration, over all its repeats. Numbers are measured; None where there is nothing to say."""

    key: str
    spec: RunSpec
    status: Status
    reason: str | None
    runs: int
    samples_per_second: float | None
    samples_per_second_low: float | None
    samples_per_second_high: float | None
    # Where the true median is with 95 % confidence; None with fewer than two runs.
    samples_per_second_interval: tuple[float, float] | None
    samples_per_second_olympic: float | None
    variation: float | None
    spread: float | None
    first_epoch_samples_per_second: float | None
    epoch_seconds: float | None
    train_loss: float | None
    test_accuracy: float | None
    startup_seconds: float | None
    cpu_seconds_per_step: float | None
    warm_up_steps: float | None
    steady_step_seconds: float | None
    peak_memory_bytes: float | None
    oversubscribed: bool
    parameters: int | None = None
    # Of its first good run, step by step; with one seed the others differ by rounding only.
    losses: tuple[float | None, ...] = ()
    epochs: tuple[EpochSummary, ...] = ()
    # What it took beside time, how soon it was good enough, and what each process held.
    expense: Expense = field(default_factory=Expense)
    convergence: Convergence = field(default_factory=Convergence)
    memory: tuple[RankMemory, ...] = ()
    # From its instrumented run: where each rank's time went, and how much longer a step was for being watched.
    breakdown: tuple[RankBreakdown, ...] = ()
    watching: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    baseline: str | None = None

    @property
    def speedup_range(self) -> tuple[float, float] | None:
        """The slowest and the fastest repeat over the median of one worker."""
        if self.speedup is None or not self.samples_per_second:
            return None
        alone = self.samples_per_second / self.speedup
        return (self.samples_per_second_low or 0.0) / alone, (self.samples_per_second_high or 0.0) / alone

    @property
    def measured(self) -> bool:
        """Whether there is a throughput to compare."""
        return self.samples_per_second is not None


@dataclass(frozen=True)
class Wishes:
    """What a reader may ask for. Without a target accuracy each setting has its own (`default_target`)."""

    target_accuracy: float | None = None
    price_per_device_hour: float | None = None


def summarise(
    records: Iterable[Record], include_oversubscribed: bool = False, wishes: Wishes | None = None
) -> list[Row]:
    """One row per configuration, in the order of workload, strategy, batch, workers."""
    groups: dict[str, list[Record]] = {}
    noted: dict[str, Record] = {}
    for record in records:
        if record.spec.instrumented:
            noted[record.spec.model_copy(update={"instrumented": False}).key()] = record
        else:
            groups.setdefault(record.key, []).append(record)
    rows = [_with_breakdown(_row(key, group), noted.get(key)) for key, group in groups.items()]
    rows = _with_outcomes(rows, groups, wishes or Wishes())
    return sorted((_scaled(row, rows, include_oversubscribed) for row in rows), key=_order)


def _row(key: str, records: list[Record]) -> Row:
    good = [record for record in records if record.ok]
    told = next((record for record in reversed(records) if not record.ok), records[-1])
    rates = [epoch.samples_per_second for epoch in _steady(good)]
    return Row(
        key=key,
        spec=records[0].spec,
        status=Status.OK if good else told.status,
        reason=None if good else told.reason,
        runs=len(good),
        samples_per_second=middle(rates),
        samples_per_second_low=min(rates, default=None),
        samples_per_second_high=max(rates, default=None),
        samples_per_second_interval=_edges(bootstrap(rates)),
        samples_per_second_olympic=olympic_mean(rates),
        variation=variation(rates),
        spread=spread(rates),
        first_epoch_samples_per_second=_median_of(good, lambda record: record.epochs[0].samples_per_second),
        epoch_seconds=middle([epoch.seconds for epoch in _steady(good)]),
        train_loss=_median_of(good, lambda record: record.epochs[-1].train_loss),
        test_accuracy=_median_of(good, lambda record: record.epochs[-1].test_accuracy),
        startup_seconds=_median_of(good, lambda record: record.startup.total_seconds if record.startup else None),
        cpu_seconds_per_step=middle([epoch.cpu_seconds / epoch.steps for epoch in _steady(good) if epoch.steps]),
        warm_up_steps=_median_of(good, lambda record: float(record.warm_up_steps)),
        steady_step_seconds=_median_of(good, lambda record: record.steady_step_seconds),
        peak_memory_bytes=_median_of(good, lambda record: max(rank.peak_memory_bytes for rank in record.ranks)),
        oversubscribed=any(finding.code == OVERSUBSCRIBED for record in good for finding in record.findings),
        parameters=next((record.parameters for record in good if record.parameters), None),
        losses=good[0].losses if good else (),
        epochs=epoch_summaries(good),
    )


def _with_breakdown(row: Row, noted: Record | None) -> Row:
    if noted is None or not noted.breakdown or not row.samples_per_second:
        return row
    plain = row.spec.samples_per_step / row.samples_per_second
    # One epoch has the warm-up in it; single steps do not, but those of a GPU are as the host launched them.
    if len(row.epochs) == 1 and row.spec.device == "cpu" and row.steady_step_seconds:
        plain = row.steady_step_seconds
    watched = middle([part.step for part in noted.breakdown]) or 0.0
    return replace(row, breakdown=noted.breakdown, watching=watched / plain - 1)


def _with_outcomes(rows: list[Row], groups: dict[str, list[Record]], wishes: Wishes) -> list[Row]:
    """With what is seen only beside others: those of the same setting fix the target, other seeds the spread."""
    good = {row.key: [record for record in groups[row.key] if record.ok] for row in rows}
    settings: dict[str, list[Record]] = {}
    series: dict[str, list[Record]] = {}
    for row in rows:
        settings.setdefault(setting(row.spec), []).extend(good[row.key])
        series.setdefault(_any_seed(row.spec), []).extend(good[row.key])
    targets = {title: wishes.target_accuracy or default_target(found) for title, found in settings.items()}
    return [
        replace(
            row,
            expense=spent(good[row.key], targets[setting(row.spec)], wishes.price_per_device_hour),
            convergence=converged(good[row.key], series[_any_seed(row.spec)], targets[setting(row.spec)]),
            memory=rank_memory(good[row.key]),
        )
        if good[row.key]
        else row
        for row in rows
    ]


def _any_seed(spec: RunSpec) -> str:
    return spec.model_copy(update={"seed": 0}).key()


def _edges(interval: Interval | None) -> tuple[float, float] | None:
    return (interval.low, interval.high) if interval else None


def _steady(records: list[Record]) -> list[Epoch]:
    return [record.steady for record in records if record.steady is not None]


def _median_of(records: list[Record], value: Callable[[Record], float | None]) -> float | None:
    return middle([found for record in records if (found := value(record)) is not None])


def _scaled(row: Row, rows: Sequence[Row], include_oversubscribed: bool) -> Row:
    base = _baseline(row, rows)
    if row.samples_per_second is None or base is None or base.samples_per_second is None:
        return row
    speedup = row.samples_per_second / base.samples_per_second
    counts = include_oversubscribed or not (row.oversubscribed or base.oversubscribed)
    efficiency = speedup / row.spec.workers if counts else None
    return replace(row, speedup=speedup, efficiency=efficiency, baseline=base.spec.strategy)


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """The same run on one worker: with the same strategy, else with its framework's single one."""
    wanted = _besides(row.spec, "workers")
    same = [other for other in rows if other.spec.workers == 1 and other.measured]
    for other in same:
        if _besides(other.spec, "workers") == wanted:
            return other
    wanted = _besides(row.spec, "workers", "strategy", "knobs")
    chosen = strategies().get(row.spec.strategy)
    for other in same:
        single = strategies().get(other.spec.strategy)
        alike = single and chosen and single.family == "single" and single.framework == chosen.framework
        if alike and _besides(other.spec, "workers", "strategy", "knobs") == wanted:
            return other
    return None


def _besides(spec: RunSpec, *names: str) -> dict[str, Any]:
    return spec.model_dump(exclude=set(names))


def _order(row: Row) -> tuple[Any, ...]:
    spec = row.spec
    return (spec.workload, str(spec.dataset), spec.dataset_copies, spec.scaling, spec.global_batch or spec.local_batch,
            _family_first(spec.strategy), spec.strategy, str(_besides(spec, "workers")), spec.workers)  # fmt: skip


def _family_first(name: str) -> bool:
    chosen = strategies().get(name)
    return chosen is None or chosen.family != "single"
