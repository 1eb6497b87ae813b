"""Records ─► one row per configuration: medians over repeats, speed-up and efficiency against one worker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from paceline.analysis.checkpoints import CheckpointCost, summarise_checkpoints
from paceline.analysis.convergence import Convergence, default_target, summarise_convergence
from paceline.analysis.energy import Expense, summarise_expense
from paceline.analysis.epochs import EpochSummary, epoch_summaries
from paceline.analysis.labels import setting_title
from paceline.analysis.membership import MembershipSummary, summarise_membership
from paceline.analysis.memory import RankMemory, rank_memory
from paceline.analysis.statistics import bootstrap, median_or_none, olympic_mean, spread, variation
from paceline.breakdown import RankBreakdown
from paceline.link import link_rank
from paceline.record import OWN_ORDER, STEPS_COUNTED, Epoch, Loading, Record, Status
from paceline.runs.loading import slowest_loading
from paceline.spec import SPREADING_FIELDS, RunSpec
from paceline.strategies import strategy_of_stored

OVERSUBSCRIBED = "oversubscribed"


@dataclass(frozen=True)
class Row:
    """One configuration over all its repeats. Numbers are measured; None where they are not known."""

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
    # Whether its samples are steps: a script did not say how many samples they have.
    counts_steps: bool = False
    test_loss: float | None = None
    # Of the model's file, by name, after the last epoch.
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    parameters: int | None = None
    # Samples per second of each good run.
    samples_per_second_of_runs: tuple[float, ...] = ()
    # Of its first good run, step by step; with one seed the others differ by rounding only.
    losses: tuple[float | None, ...] = ()
    epochs: tuple[EpochSummary, ...] = ()
    # Energy and cost, time to a target accuracy, and the memory of each process.
    expense: Expense = field(default_factory=Expense)
    convergence: Convergence = field(default_factory=Convergence)
    memory: tuple[RankMemory, ...] = ()
    checkpoint: CheckpointCost = field(default_factory=CheckpointCost)
    # Whether its samples came in an order of their own, so that its losses compare with no other run's.
    own_order: bool = False
    # Of runs that read their data while they trained: what that cost the rank that waited longest, in the middle run.
    loading: Loading | None = None
    # Of a run whose members changed.
    membership: MembershipSummary | None = None
    # From its instrumented run: where each rank's time went, and how much longer its steps were than timed ones.
    breakdown: tuple[RankBreakdown, ...] = ()
    instrumentation_overhead: float | None = None
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
class SummaryOptions:
    """What rows are computed with. Without a target accuracy, each setting has a default (`default_target`)."""

    target_accuracy: float | None = None
    price_per_device_hour: float | None = None


def summarise(
    records: Iterable[Record], include_oversubscribed: bool = False, options: SummaryOptions | None = None
) -> list[Row]:
    """One row per configuration, in the order of workload, strategy, batch, workers."""
    groups: dict[str, list[Record]] = {}
    instrumented: dict[str, Record] = {}
    for record in records:
        if record.spec.instrumented:
            instrumented[record.spec.model_copy(update={"instrumented": False}).key()] = record
        else:
            groups.setdefault(record.key, []).append(record)
    rows = [_with_breakdown(_row(key, group), instrumented.get(key)) for key, group in groups.items()]
    rows = [replace(row, membership=summarise_membership(groups[row.key])) for row in rows]
    rows = _with_outcomes(rows, groups, options or SummaryOptions())
    return sorted((_scaled(row, rows, include_oversubscribed) for row in rows), key=_order)


def _row(key: str, records: list[Record]) -> Row:
    good = [record for record in records if record.ok]
    newest_failure = next((record for record in reversed(records) if not record.ok), records[-1])
    rates = [epoch.samples_per_second for epoch in _steady(good)]
    interval = bootstrap(rates)
    return Row(
        key=key,
        spec=records[0].spec,
        status=Status.OK if good else newest_failure.status,
        reason=None if good else newest_failure.reason,
        runs=len(good),
        samples_per_second=median_or_none(rates),
        samples_per_second_low=min(rates, default=None),
        samples_per_second_high=max(rates, default=None),
        samples_per_second_interval=(interval.low, interval.high) if interval else None,
        samples_per_second_olympic=olympic_mean(rates),
        variation=variation(rates),
        spread=spread(rates),
        first_epoch_samples_per_second=_median_of(good, lambda record: record.epochs[0].samples_per_second),
        epoch_seconds=median_or_none([epoch.seconds for epoch in _steady(good)]),
        train_loss=_median_of(good, lambda record: record.epochs[-1].train_loss),
        test_accuracy=_median_of(good, lambda record: record.epochs[-1].test_accuracy),
        test_loss=_median_of(good, lambda record: record.epochs[-1].test_loss),
        test_metrics=_metrics(good),
        startup_seconds=_median_of(good, lambda record: record.startup.total_seconds if record.startup else None),
        cpu_seconds_per_step=median_or_none([each.cpu_seconds / each.steps for each in _steady(good) if each.steps]),
        warm_up_steps=_median_of(good, lambda record: float(record.warm_up_steps)),
        steady_step_seconds=_median_of(good, lambda record: record.steady_step_seconds),
        peak_memory_bytes=_median_of(good, lambda record: max(rank.peak_memory_bytes for rank in record.ranks)),
        oversubscribed=any(finding.code == OVERSUBSCRIBED for record in good for finding in record.findings),
        counts_steps=any(finding.code == STEPS_COUNTED for record in good for finding in record.findings),
        parameters=next((record.parameters for record in good if record.parameters), None),
        samples_per_second_of_runs=tuple(rates),
        losses=good[0].losses if good else (),
        epochs=epoch_summaries(good),
        own_order=any(finding.code == OWN_ORDER for record in good for finding in record.findings),
        loading=_middle_loading(good),
    )


def _middle_loading(records: list[Record]) -> Loading | None:
    slowest = (slowest_loading([rank.loading for rank in record.ranks]) for record in records)
    known = sorted((loading for loading in slowest if loading is not None), key=lambda each: each.wait_seconds)
    return known[len(known) // 2] if known else None


def _with_breakdown(row: Row, instrumented: Record | None) -> Row:
    if instrumented is None or not instrumented.breakdown or not row.samples_per_second:
        return row
    timed_step_seconds = row.spec.samples_per_step / row.samples_per_second
    # One epoch has the warm-up in it; single steps do not, but those of a GPU are as the host launched them. The batch
    # of a script is its own.
    by_step = row.spec.script is not None or (len(row.epochs) == 1 and row.spec.device == "cpu")
    if by_step and row.steady_step_seconds:
        timed_step_seconds = row.steady_step_seconds
    instrumented_step_seconds = median_or_none([part.step for part in instrumented.breakdown]) or 0.0
    overhead = instrumented_step_seconds / timed_step_seconds - 1
    return replace(row, breakdown=instrumented.breakdown, instrumentation_overhead=overhead)


def _with_outcomes(rows: list[Row], groups: dict[str, list[Record]], options: SummaryOptions) -> list[Row]:
    """Adds what depends on other rows: the target accuracy of the setting, and the spread over seeds."""
    good = {row.key: [record for record in groups[row.key] if record.ok] for row in rows}
    settings: dict[str, list[Record]] = {}
    series: dict[str, list[Record]] = {}
    for row in rows:
        settings.setdefault(setting_title(row.spec), []).extend(good[row.key])
        series.setdefault(_any_seed(row.spec), []).extend(good[row.key])
    targets = {title: options.target_accuracy or default_target(records) for title, records in settings.items()}
    return [
        replace(
            row,
            expense=summarise_expense(good[row.key], targets[setting_title(row.spec)], options.price_per_device_hour),
            convergence=summarise_convergence(
                good[row.key], series[_any_seed(row.spec)], targets[setting_title(row.spec)]
            ),
            memory=rank_memory(good[row.key]),
            checkpoint=summarise_checkpoints(good[row.key], row.samples_per_second),
        )
        if good[row.key]
        else row
        for row in rows
    ]


def _any_seed(spec: RunSpec) -> str:
    return spec.model_copy(update={"seed": 0}).key()


def _steady(records: list[Record]) -> list[Epoch]:
    return [record.steady for record in records if record.steady is not None]


def _metrics(records: list[Record]) -> dict[str, float]:
    """The median of each metric over repeats; one that was never a finite number is left out."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.epochs[-1].test_metrics.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: median(numbers) for name, numbers in values.items()}


def _median_of(records: list[Record], value: Callable[[Record], float | None]) -> float | None:
    return median_or_none([number for record in records if (number := value(record)) is not None])


def _scaled(row: Row, rows: Sequence[Row], include_oversubscribed: bool) -> Row:
    base = _baseline(row, rows)
    if row.samples_per_second is None or base is None or base.samples_per_second is None:
        return row
    speedup = row.samples_per_second / base.samples_per_second
    counts = include_oversubscribed or not (row.oversubscribed or base.oversubscribed)
    efficiency = speedup / row.spec.workers if counts else None
    return replace(row, speedup=speedup, efficiency=efficiency, baseline=base.spec.strategy)


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """The same run on one worker: with the same strategy, or else with its framework's single-device strategy.

    A worker by itself crosses no link: what crosses one is never a baseline.
    """
    fields = _fields_except(row.spec, "workers", "layout", "link")
    same = [other for other in rows if other.spec.workers == 1 and other.measured and other.spec.link is None]
    for other in same:
        if _fields_except(other.spec, "workers", "layout", "link") == fields:
            return other
    fields = _fields_except(row.spec, *SPREADING_FIELDS, "link")
    chosen = strategy_of_stored(row.spec.strategy)
    for other in same:
        single = strategy_of_stored(other.spec.strategy)
        alike = single and chosen and single.family == "single" and single.framework == chosen.framework
        if alike and _fields_except(other.spec, *SPREADING_FIELDS, "link") == fields:
            return other
    return None


def _fields_except(spec: RunSpec, *names: str) -> dict[str, Any]:
    return spec.model_dump(exclude=set(names))


def _order(row: Row) -> tuple[Any, ...]:
    spec = row.spec
    return (spec.workload, str(spec.dataset), spec.dataset_copies, spec.scaling,
            spec.global_batch or spec.local_batch or 0,
            _single_first(spec.strategy), spec.strategy, str(_fields_except(spec, "workers", "link")), spec.workers,
            link_rank(spec.link))  # fmt: skip


def _single_first(name: str) -> bool:
    chosen = strategy_of_stored(name)
    return chosen is None or chosen.family != "single"
