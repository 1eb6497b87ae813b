"""How long a plan will take: from stored runs of the same kind, and from a few measured steps of every other kind.

Runs are of one kind when they differ in nothing but how long they train; their steps then cost the same.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from paceline.plan import Plan, PlannedRun
from paceline.record import Record, Status
from paceline.runs.fleets import Machines, open_machines
from paceline.runs.launch import launch, schedule
from paceline.runs.pauses.target import evaluations_in
from paceline.spec import RunSpec
from paceline.strategies import strategy, strategy_of_stored

# Steps of a short run, of which the first are slow and are left out. Where so many would take longer than
# `STEPS_SECONDS`, fewer are made.
MEASURED_STEPS, LEAST_STEPS, SLOW_STEPS = 10, 5, 2
STEPS_SECONDS = 4.0
# No more short runs are started after this long.
PATIENCE_SECONDS = 90.0
# Fields that decide how long a run trains, or nothing about its speed.
_LENGTH_FIELDS = ("dataset_copies", "epochs", "steps", "seed", "shrunk", "instrumented", "timeout_seconds",
           "collective_timeout_seconds")  # fmt: skip

# Makes a short run of a kind and returns its record, or None when there is no more time for that.
Measure = Callable[[RunSpec], Record | None]


@dataclass(frozen=True)
class Pace:
    """Wall-clock seconds of a kind of run: once per run, per step, and per evaluation after an epoch."""

    once_seconds: float
    step_seconds: float
    evaluation_seconds: float

    def seconds(self, spec: RunSpec) -> float:
        """The seconds of one run of this kind."""
        lengths = [steps for _, steps in schedule(spec)]
        evaluations = 0 if spec.instrumented else len(lengths)
        # A run may come to its target sooner; how soon, only the run tells.
        evaluations += evaluations_in(sum(lengths)) if spec.has_target else 0
        return self.once_seconds + self.step_seconds * sum(lengths) + self.evaluation_seconds * evaluations


@dataclass(frozen=True)
class Estimate:
    """How long a plan will take, and for how many kinds of runs that is stored, measured or extrapolated."""

    # None where no kind could be measured; `failure` then says why.
    seconds: float | None
    stored: int
    measured: int
    # Kinds that take the pace of the most similar one, its steps scaled to their batch.
    extrapolated: int
    failure: str | None = None
    # Whether runs look for a target, and end sooner where they come to it.
    may_end_sooner: bool = False


def estimate(plan: Plan, stored: Iterable[Record], measure: Measure) -> Estimate:
    """How long all runs that the plan still has to make will take."""
    kinds: dict[str, RunSpec] = {}
    for run in plan.to_run:
        kinds.setdefault(kind(run.spec), run.spec)
    stored_by_kind = _stored_by_kind(stored, kinds)
    failure = None
    measured_or_stored = dict(stored_by_kind)
    paces = {name: _median_pace([pace(record) for record in records]) for name, records in stored_by_kind.items()}
    for name in _small_batches_first([name for name in kinds if name not in stored_by_kind], kinds, plan.study):
        step = _extrapolated_pace(kinds[name], paces, kinds).step_seconds if paces else 0.0
        slow = step * MEASURED_STEPS > STEPS_SECONDS
        record = measure(shortened_run(kinds[name], LEAST_STEPS if slow else MEASURED_STEPS))
        if record is not None and record.ok:
            measured_or_stored[name], paces[name] = [record], pace(record)
        elif record is not None:
            # Two equal failures and no success (no data, say): the others would fail too.
            if not measured_or_stored and record.reason == failure:
                break
            failure = failure or record.reason
    if plan.to_run and not measured_or_stored:
        return Estimate(None, 0, 0, 0, failure)
    paces |= {name: _extrapolated_pace(kinds[name], paces, kinds) for name in kinds if name not in measured_or_stored}
    seconds = sum(paces[kind(run.spec)].seconds(run.spec) for run in plan.to_run)
    seconds += sum(_shared_imports(plan, [record for records in measured_or_stored.values() for record in records]))
    measured = len(measured_or_stored)
    sooner = any(run.spec.has_target for run in plan.to_run)
    return Estimate(
        seconds, len(stored_by_kind), measured - len(stored_by_kind), len(kinds) - measured, failure, sooner
    )


def _small_batches_first(names: list[str], kinds: dict[str, RunSpec], seed: str) -> list[str]:
    """The names with small batches first, which are quick to measure and scale to larger ones; else at random."""
    ordered = list(names)
    random.Random(seed).shuffle(ordered)
    families: dict[tuple[str, str, int], list[int]] = {}
    for name in ordered:
        spec = kinds[name]
        families.setdefault((spec.workload, spec.strategy, spec.workers), []).append(spec.samples_per_step)

    def place(name: str) -> int:
        spec = kinds[name]
        batches = sorted(set(families[spec.workload, spec.strategy, spec.workers]))
        return batches.index(spec.samples_per_step)

    return sorted(ordered, key=place)


def _extrapolated_pace(spec: RunSpec, paces: dict[str, Pace], kinds: dict[str, RunSpec]) -> Pace:
    """The pace of the most similar known kind, its steps scaled to this batch."""

    def similarity(name: str) -> tuple[bool, bool, bool, float]:
        other = kinds[name]
        ratio = other.samples_per_step / spec.samples_per_step
        same = (other.workload == spec.workload, other.strategy == spec.strategy, other.workers == spec.workers)
        return *same, -max(ratio, 1 / ratio)

    nearest = max((name for name in paces if name in kinds), key=similarity)
    longer = spec.samples_per_step / kinds[nearest].samples_per_step
    return replace(paces[nearest], step_seconds=paces[nearest].step_seconds * longer)


def kind(spec: RunSpec) -> str:
    """A text that is the same for runs with the same pace."""
    # A learning rate takes no time, and a search has many.
    plain = spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"lr": 1.0})})
    return plain.model_dump_json(exclude=set(_LENGTH_FIELDS))


def shortened_run(spec: RunSpec, most: int = MEASURED_STEPS) -> RunSpec:
    """The same run, ended after a few steps; never longer than the run itself."""
    steps = sum(steps for _, steps in schedule(spec.model_copy(update={"instrumented": False})))
    changes = {
        "epochs": None, "steps": min(most, steps), "instrumented": False, "shrunk": None, "membership": None,
    }  # fmt: skip
    return spec.model_copy(update=changes)


def pace(record: Record) -> Pace:
    """The pace of a finished run. A run with a simulated clock costs what its processes took, not what it reports."""
    training = sum(epoch.seconds for epoch in record.epochs)
    evaluating = [epoch.evaluation_seconds or 0.0 for epoch in record.epochs]
    if training > record.wall_seconds:
        return Pace(record.wall_seconds, 0.0, 0.0)
    step = _step_seconds(record)
    steps = sum(epoch.steps for epoch in record.epochs)
    once = record.wall_seconds - step * steps - sum(evaluating) - len(record.looks) * median(evaluating)
    return Pace(max(0.0, once), step, median(evaluating))


def _step_seconds(record: Record) -> float:
    """Seconds of a step: in epochs after the first if they have enough steps, else in all but the first steps."""
    later = record.epochs[1:]
    if later and sum(epoch.steps for epoch in later) >= MEASURED_STEPS:
        return sum(epoch.seconds for epoch in later) / sum(epoch.steps for epoch in later)
    steps, seconds = sum(epoch.steps for epoch in record.epochs), sum(epoch.seconds for epoch in record.epochs)
    slow = SLOW_STEPS if steps > 2 * SLOW_STEPS else min(1, steps - 1)
    # Of a stored run the single steps may not be at hand; then all of them count.
    slow = slow if any(record.step_seconds.values()) else 0
    first = max((sum(durations[:slow]) for durations in record.step_seconds.values()), default=0.0)
    return max(0.0, seconds - first) / (steps - slow)


def _stored_by_kind(stored: Iterable[Record], kinds: dict[str, RunSpec]) -> dict[str, list[Record]]:
    """Stored runs that ended well, by kind, of the kinds in the plan."""
    by_kind: dict[str, list[Record]] = {}
    for record in stored:
        if record.ok and record.epochs and record.spec.is_plain and kind(record.spec) in kinds:
            by_kind.setdefault(kind(record.spec), []).append(record)
    return by_kind


def _median_pace(paces: Sequence[Pace]) -> Pace:
    return Pace(
        median(pace.once_seconds for pace in paces),
        median(pace.step_seconds for pace in paces),
        median(pace.evaluation_seconds for pace in paces),
    )


def _shared_imports(plan: Plan, records: Iterable[Record]) -> list[float]:
    """Seconds of each import that several runs share, which is not in the wall clock of those runs."""
    import_seconds = {
        stored.framework: record.startup.import_seconds
        for record in records
        if record.startup is not None and record.startup.forked
        if (stored := strategy_of_stored(record.spec.strategy)) is not None
    }
    runs = Counter(strategy(run.spec.strategy).framework for run in plan.to_run)
    return [import_seconds[name] for name, count in runs.items() if count > 1 and name in import_seconds]


def estimate_by_measuring(
    plan: Plan, stored: Iterable[Record], on_kind: Callable[[RunSpec], None], machines: Machines | None = None
) -> Estimate:
    """The estimate from stored runs and, for kinds without one, short runs that are made now and not stored."""
    if machines is None:
        with open_machines() as here:
            return estimate_by_measuring(plan, stored, on_kind, here)
    system, until = machines.system, time.monotonic() + PATIENCE_SECONDS
    launchers = machines.launchers([run.spec for run in plan.to_run])
    # Frameworks whose first run is done: it reads libraries from disk and is slower than all that follow.
    warm: set[str | None] = {None}

    def make(spec: RunSpec) -> Record:
        record = launch(PlannedRun(spec, 0), plan.study, system, lambda _: None, launcher=launchers[spec.strategy])
        if record.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return record

    def measure(spec: RunSpec) -> Record | None:
        if time.monotonic() > until:
            return None
        on_kind(spec)
        framework = strategy(spec.strategy).framework
        if framework not in warm:
            warm.add(framework)
            make(spec.model_copy(update={"steps": 1}))
        return make(spec)

    return estimate(plan, stored, measure)
