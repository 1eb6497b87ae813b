"""A study from end to end: plan ─► run ─► store, telling a listener what happens.

The command line and the Python interface both use it.
"""

from collections import Counter
from dataclasses import dataclass, field

from paceline.data import data_source
from paceline.plan import Plan, PlannedRun, expand_strategies, make_plan
from paceline.record import FINAL, Record, Status
from paceline.runs.launch import FRESH, launch, skipped_record
from paceline.runs.launchers import Launcher
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.probe import probe
from paceline.runs.starters import ForkServers, fork_servers
from paceline.runs.wire import EpochEvent, StepEvent
from paceline.store import Store
from paceline.strategies import strategy
from paceline.study import Study
from paceline.systems import local_system
from paceline.workloads.user_model import USER_DATA


class Listener:
    """Receives what happens while a study is executed, and by itself ignores all of it."""

    def planned(self, plan: Plan) -> None:
        """The plan is made; called once, before anything runs."""

    def fetching(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """A data set is being downloaded."""

    def started(self, run: PlannedRun, number: int) -> None:
        """A run begins."""

    def event(self, event: StepEvent | EpochEvent) -> None:
        """A step or an epoch of the current run ended."""

    def ended(self, record: Record) -> None:
        """A run ended and its record is stored."""


@dataclass
class Outcome:
    """How the runs of a study ended."""

    plan: Plan
    counts: dict[Status, int] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return Status.INTERRUPTED in self.counts

    @property
    def failures(self) -> int:
        """Runs that ended other than well."""
        return sum(count for status, count in self.counts.items() if status in FINAL and status is not Status.OK)


def plan_study(
    study: Study, store: Store | None, *, fresh: bool = False, retry: bool = False, breakdown: bool = False
) -> Plan:
    """The plan of a study: which runs are left to make."""
    names = study.factors.get("strategy", study.fixed.get("strategy"))
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        study = study.with_fields({"strategy": expand_strategies(names)})
    done = set() if fresh or store is None else store.done(only_ok=retry)
    return make_plan(study, done, local_system(), probe, breakdown)


def execute(plan: Plan, store: Store, listener: Listener) -> Outcome:
    """Makes every run of the plan and stores each record as it comes. Ctrl-C ends the current run and the study."""
    outcome = Outcome(plan)
    listener.planned(plan)
    for name in sorted({str(run.spec.dataset) for run in plan.to_run} - {USER_DATA}):
        data_source(name).prepare(listener.fetching)
    store.add_to_study(plan.study, plan.keys)
    for run in plan.skipped:
        if not store.has_skipped(run.spec.key(), str(run.skip_reason)):
            store.add(skipped_record(run, plan.study))
    with fork_servers() as servers:
        launchers = plan_launchers(plan, servers)
        for number, run in enumerate(plan.to_run, start=1):
            listener.started(run, number)
            record = launch(run, plan.study, local_system(), listener.event, launcher=launchers[run.spec.strategy])
            store.add(record)
            outcome.counts[record.status] = outcome.counts.get(record.status, 0) + 1
            listener.ended(record)
            if record.status is Status.INTERRUPTED:
                break
    return outcome


def plan_launchers(plan: Plan, servers: ForkServers) -> dict[str, Launcher]:
    """The launcher of each strategy: several runs of a framework share one import of it, a single one does not."""
    planned = {run.spec.strategy: strategy(run.spec.strategy) for run in plan.to_run}
    runs = Counter(planned[run.spec.strategy].framework for run in plan.to_run)
    return {
        name: FRESH if each.framework is None or runs[each.framework] < 2 else LocalLauncher(servers.starter(each))
        for name, each in planned.items()
    }
