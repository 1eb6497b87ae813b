"""Records ─► one row per configuration: medians over repeats, speed-up and efficiency against one worker."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple, Self

from paceline.analysis.checkpoints import CheckpointCost, summarise_checkpoints
from paceline.analysis.configurations.identity import any_seed, identity_except
from paceline.analysis.configurations.order import comes_after_single, in_order
from paceline.analysis.convergence import (
    Convergence,
    FinalAccuracy,
    RunOutcome,
    default_target,
    run_outcome,
    summarise_convergence,
)
from paceline.analysis.energy import Expense, summarise_expense
from paceline.analysis.epochs import EpochSummary, epoch_summaries
from paceline.analysis.labels import setting_title
from paceline.analysis.membership import MembershipSummary, summarise_membership
from paceline.analysis.memory import RankMemory, rank_memory
from paceline.analysis.statistics import bootstrap, median_or_none, olympic_mean, spread, variation
from paceline.breakdown import RankBreakdown
from paceline.costs.noise_scale import statistical_efficiency
from paceline.record import OWN_ORDER, STEPS_COUNTED, Epoch, GradientNoise, Loading, Record, Status
from paceline.runs.loading import slowest_loading
from paceline.spec import SPREADING_FIELDS, RunSpec
from paceline.strategies import strategy_of_stored

OVERSUBSCRIBED = "oversubscribed"


@dataclass(frozen=True, slots=True)
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
    # Steps until the run's target was reached; None where it has none, or not all runs reached it.
    steps_to_target: float | None = None
    # Of each epoch of its first good run that could tell the noise of its gradients, with the number of the epoch.
    noise: tuple[tuple[int, GradientNoise], ...] = ()
    # In samples: as measured here, or in a run of the same training with the nearest batch.
    noise_scale: float | None = None
    # The speed-up times what a sample is worth in this batch, beside one in the batch of one worker.
    progress_speedup: float | None = None

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
    for record in records:
        groups.setdefault(record.key, []).append(record)
    summary = Summary()
    for group in groups.values():
        summary.add(group)
    return summary.rows(include_oversubscribed, options)


class Summary:
    """Rows of configurations that come one by one: their records need not be in memory together.

    A configuration that comes again takes the place of what was known of it, and only rows that this changes are made
    anew.
    """

    def __init__(self) -> None:
        self._configurations: dict[str, _Configuration] = {}
        # Of the instrumented run of each configuration.
        self._breakdowns: dict[str, tuple[RankBreakdown, ...]] = {}

    def add(self, records: Sequence[Record]) -> str:
        """Takes in all records of one configuration, the oldest first, and returns its key."""
        spec = records[0].spec
        if spec.instrumented:
            key = spec.model_copy(update={"instrumented": False}).key()
            self._breakdowns[key] = records[-1].breakdown
        else:
            key = records[0].key
            self._configurations[key] = _Configuration.of(key, records)
        return key

    def include(self, other: Self, order: Iterable[str]) -> None:
        """Takes in the configurations of another summary; all are then in this order of keys, others at the end."""
        known = self._configurations | other._configurations
        self._configurations = {key: known[key] for key in order if key in known} | known
        self._breakdowns |= other._breakdowns

    def rows(self, include_oversubscribed: bool = False, options: SummaryOptions | None = None) -> list[Row]:
        """One row per configuration, in the order of workload, strategy, batch, workers."""
        options = options or SummaryOptions()
        configurations = in_order(self._configurations.values(), lambda configuration: configuration.row.spec)
        targets, finals, baselines = self._targets(options), self._final_accuracies(), self._baselines()
        rows = [
            configuration.finished_row(
                _Surroundings(
                    target=targets[configuration.setting],
                    final=finals[configuration.any_seed],
                    breakdown=self._breakdowns.get(configuration.row.key, ()),
                    baseline=next((baselines[name] for name in configuration.baselines if name in baselines), None),
                    include_oversubscribed=include_oversubscribed,
                    price_per_device_hour=options.price_per_device_hour,
                )
            )
            for configuration in configurations
        ]
        return with_progress(rows)

    def _targets(self, options: SummaryOptions) -> dict[str, float | None]:
        """The target accuracy of each setting."""
        settings: dict[str, list[RunOutcome]] = {}
        for configuration in self._configurations.values():
            settings.setdefault(configuration.setting, []).extend(configuration.outcomes)
        return {title: options.target_accuracy or default_target(runs) for title, runs in settings.items()}

    def _final_accuracies(self) -> dict[Hashable, FinalAccuracy]:
        """The final accuracy over the seeds of each series of configurations."""
        series: dict[Hashable, list[RunOutcome]] = {}
        for configuration in self._configurations.values():
            series.setdefault(configuration.any_seed, []).extend(configuration.outcomes)
        return {name: FinalAccuracy.of(runs) for name, runs in series.items()}

    def _baselines(self) -> dict[Hashable, Row]:
        """What was measured on one worker, by what it is a baseline of; the first of several."""
        baselines: dict[Hashable, Row] = {}
        for configuration in self._configurations.values():
            row = configuration.row
            # A worker by itself crosses no link: what crosses one is never a baseline.
            if row.measured and row.spec.workers == 1 and row.spec.link is None:
                same, alike = configuration.baselines
                baselines.setdefault(same, row)
                if not comes_after_single(row.spec.strategy):
                    baselines.setdefault(alike, row)
        return baselines


class _Surroundings(NamedTuple):
    """What of other configurations, and of the question, is in a row."""

    target: float | None
    final: FinalAccuracy
    breakdown: tuple[RankBreakdown, ...]
    baseline: Row | None
    include_oversubscribed: bool
    price_per_device_hour: float | None


@dataclass(slots=True)
class _Configuration:
    """One configuration: its row as far as it follows from its own records, and what its place among others needs."""

    row: Row
    outcomes: tuple[RunOutcome, ...]
    setting: str
    any_seed: Hashable
    # What its baseline is known by: the same strategy on one worker, or else its framework's single-device strategy.
    baselines: tuple[Hashable, Hashable]
    # The row that was made last, and of what.
    _last: tuple[_Surroundings, Row] | None = None

    @classmethod
    def of(cls, key: str, records: Sequence[Record]) -> "_Configuration":
        """Summarises the records of one configuration."""
        good = [record for record in records if record.ok]
        row, chosen = _row(key, records, good), strategy_of_stored(records[0].spec.strategy)
        spec, framework = row.spec, str(chosen.framework) if chosen else ""
        return cls(
            row,
            tuple(run_outcome(record) for record in good),
            setting_title(spec),
            any_seed(spec),
            (
                ("same", identity_except(spec, {"workers", "layout", "link", "noise_scale"})),
                ("alike", framework, identity_except(spec, {*SPREADING_FIELDS, "link"})),
            ),
        )

    def finished_row(self, around: _Surroundings) -> Row:
        """The row with what depends on others."""
        if self._last is None or self._last[0] != around:
            self._last = around, _finished(self.row, self.outcomes, around)
        return self._last[1]


def _finished(row: Row, outcomes: Sequence[RunOutcome], around: _Surroundings) -> Row:
    changes: dict[str, Any] = {**_scaling(row, around), **_breakdown(row, around.breakdown)}
    if outcomes:
        changes |= {
            "expense": summarise_expense(outcomes, around.target, around.price_per_device_hour),
            "convergence": summarise_convergence(outcomes, around.final, around.target),
        }
    return replace(row, **changes) if changes else row


def _row(key: str, records: Sequence[Record], good: Sequence[Record]) -> Row:
    newest_failure = next((record for record in reversed(records) if not record.ok), records[-1])
    rates = [epoch.samples_per_second for epoch in _steady(good)]
    interval, rate = bootstrap(rates), median_or_none(rates)
    reached = [float(record.steps_to_target) for record in good if record.steps_to_target is not None]
    return Row(
        key=key,
        spec=records[0].spec,
        status=Status.OK if good else newest_failure.status,
        reason=None if good else newest_failure.reason,
        runs=len(good),
        samples_per_second=rate,
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
        steps_to_target=median_or_none(reached) if len(reached) == len(good) else None,
        noise=_noise_of(good[0]) if good else (),
        noise_scale=_median_of(good, lambda record: record.noise_scale),
        memory=rank_memory(good),
        checkpoint=summarise_checkpoints(good, rate),
        membership=summarise_membership(records),
        own_order=any(finding.code == OWN_ORDER for record in good for finding in record.findings),
        loading=_middle_loading(good),
    )


def _middle_loading(records: Sequence[Record]) -> Loading | None:
    slowest = (slowest_loading([rank.loading for rank in record.ranks]) for record in records)
    known = sorted((loading for loading in slowest if loading is not None), key=lambda each: each.wait_seconds)
    return known[len(known) // 2] if known else None


def _breakdown(row: Row, breakdown: tuple[RankBreakdown, ...]) -> dict[str, Any]:
    """From the instrumented run: where the time went, and how much longer its steps were than timed ones."""
    if not breakdown or not row.samples_per_second:
        return {}
    timed_step_seconds = row.spec.samples_per_step / row.samples_per_second
    # One epoch has the warm-up in it; single steps do not, but those of a GPU are as the host launched them. The batch
    # of a script is its own.
    by_step = row.spec.script is not None or (len(row.epochs) == 1 and row.spec.device == "cpu")
    if by_step and row.steady_step_seconds:
        timed_step_seconds = row.steady_step_seconds
    instrumented_step_seconds = median_or_none([part.step for part in breakdown]) or 0.0
    overhead = instrumented_step_seconds / timed_step_seconds - 1
    return {"breakdown": breakdown, "instrumentation_overhead": overhead}


def _steady(records: Sequence[Record]) -> list[Epoch]:
    return [record.steady for record in records if record.steady is not None]


def _metrics(records: Sequence[Record]) -> dict[str, float]:
    """The median of each metric over repeats; one that was never a finite number is left out."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.epochs[-1].test_metrics.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: median(numbers) for name, numbers in values.items()}


def _median_of(records: Sequence[Record], value: Callable[[Record], float | None]) -> float | None:
    return median_or_none([number for record in records if (number := value(record)) is not None])


def _scaling(row: Row, around: _Surroundings) -> dict[str, Any]:
    """Speed-up and efficiency against the same run on one worker."""
    base = around.baseline
    if row.samples_per_second is None or base is None or base.samples_per_second is None:
        return {}
    speedup = row.samples_per_second / base.samples_per_second
    counts = around.include_oversubscribed or not (row.oversubscribed or base.oversubscribed)
    return {
        "speedup": speedup,
        "efficiency": speedup / row.spec.workers if counts else None,
        "baseline": base.spec.strategy,
    }


def _noise_of(record: Record) -> tuple[tuple[int, GradientNoise], ...]:
    """The epochs that could tell it; very short ones may have no measured step at all."""
    return tuple(
        (epoch.number, epoch.noise)
        for epoch in record.epochs
        if epoch.noise is not None and epoch.noise.scale is not None
    )


def with_progress(rows: Sequence[Row]) -> list[Row]:
    """The rows with how much of their speed-up is progress, where the noise scale of the same training is known.

    One that has none of its own takes that of the nearest batch. One worker had the same batch, or the same local one.
    """
    apart = {*SPREADING_FIELDS, "link", "global_batch", "local_batch", "epochs", "steps", "seed"}
    known: dict[Hashable, list[Row]] = {}
    for row in rows:
        if row.noise_scale is not None:
            known.setdefault(identity_except(row.spec, apart), []).append(row)
    return [_in_progress(row, known.get(identity_except(row.spec, apart), [])) for row in rows] if known else [*rows]


def _in_progress(row: Row, alike: Sequence[Row]) -> Row:
    batch = row.spec.samples_per_step
    noise = row.noise_scale
    if noise is None and alike:
        noise = min(alike, key=lambda other: abs(other.spec.samples_per_step - batch)).noise_scale
    if noise is None or row.speedup is None:
        return replace(row, noise_scale=noise)
    alone = batch if row.spec.scaling == "strong" else batch // row.spec.workers
    return replace(row, noise_scale=noise, progress_speedup=row.speedup * statistical_efficiency(noise, batch, alone))
