"""A study from end to end: plan ─► run ─► store, telling a listener what happens.

The command line and the Python interface both use it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from paceline.data import data_source
from paceline.errors import SpecError
from paceline.plan import Plan, PlannedRun, expand_strategies, make_plan
from paceline.record import FINAL, Record, Status
from paceline.runs.elastic.launch import launch_elastic
from paceline.runs.fleets import Machines, open_machines
from paceline.runs.interrupts import held_interrupts
from paceline.runs.launch import launch, skipped_record
from paceline.runs.probe import probe
from paceline.runs.wire import RunNews
from paceline.store import Owner, Store, is_here
from paceline.study import Study
from paceline.systems import local_system
from paceline.workloads.user_model import USER_DATA

# How often a tool that waits for its turn looks whether it has come.
TURN_SECONDS = 0.2


class Listener:
    """Receives what happens while a study is executed, and by itself ignores all of it."""

    def planned(self, plan: Plan) -> None:
        """The plan is made; called once, before anything runs."""

    def fetching(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """A data set is being downloaded."""

    def started(self, run: PlannedRun, number: int) -> None:
        """A run begins."""

    def event(self, event: RunNews) -> None:
        """News of the current run: a step or an epoch ended, what its processes use, what they print."""

    def ended(self, record: Record) -> None:
        """A run ended and its record is stored."""

    def waiting(self, owner: Owner) -> None:
        """Another tool makes a run on this machine, and this one waits for its turn; told once for each run."""

    def made_elsewhere(self, run: PlannedRun, number: int) -> None:
        """Another tool made this run and stored it since the plan was made."""


@dataclass
class Outcome:
    """How the runs of a study ended."""

    plan: Plan
    counts: dict[Status, int] = field(default_factory=dict)
    # Runs of the plan that were stored before and had not ended well.
    stored_failures: int = 0
    # Whether any run of the plan has a result, made now or before.
    has_results: bool = True

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return Status.INTERRUPTED in self.counts

    @property
    def failures(self) -> int:
        """Runs that ended other than well."""
        return sum(count for status, count in self.counts.items() if status in FINAL and status is not Status.OK)


def plan_study(
    study: Study, store: Store | None, *, fresh: bool = False, retry: bool = False, breakdown: bool = False,
    machines: Machines | None = None,
) -> Plan:  # fmt: skip
    """The plan of a study: which runs are left to make, on this machine or on those of a fleet."""
    if "machines" in study.factors or "machines" in study.fixed:
        raise SpecError(f"study {study.name} sets machines, which only --on does; leave them out of it")
    if machines is not None and machines.names:
        study = study.with_fields({"machines": machines.names})
    names = study.factors.get("strategy", study.fixed.get("strategy"))
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        study = study.with_fields({"strategy": expand_strategies(names)})
    newest = store.newest() if store is not None else None
    done = set() if fresh or store is None else store.done(only_ok=retry)
    system = machines.system if machines is not None else local_system()
    return replace(make_plan(study, done, system, probe, breakdown), newest_record=newest)


def execute(plan: Plan, store: Store, listener: Listener, machines: Machines | None = None) -> Outcome:
    """Makes every run of the plan and stores each record as it comes. Ctrl-C ends the current run and the study.

    Tools that work on one results file take turns: a run is claimed first, and what another tool made is left.
    """
    if machines is None:
        with open_machines() as here:
            return execute(plan, store, listener, here)
    outcome = Outcome(plan)
    newest = store.newest() if plan.newest_record is None else plan.newest_record
    listener.planned(plan)
    for name in sorted({str(run.spec.dataset) for run in plan.to_run} - {USER_DATA}):
        data_source(name).prepare(listener.fetching)
    store.add_to_study(plan.study, plan.keys)
    for run in plan.skipped:
        if not store.has_skipped(run.spec.key(), str(run.skip_reason)):
            store.add(skipped_record(run, plan.study))
    launchers = machines.launchers([run.spec for run in plan.to_run])
    for number, run in enumerate(plan.to_run, start=1):
        with _turn(run, store, listener, newest) as is_ours:
            if not is_ours:
                listener.made_elsewhere(run, number)
                continue
            listener.started(run, number)
            start, launcher = launch if run.spec.membership is None else launch_elastic, launchers[run.spec.strategy]
            # From the end of its processes on, a run is stored before anything stops the study.
            with held_interrupts():
                record = start(run, plan.study, machines.system, listener.event, launcher=launcher)
                store.add(record)
        outcome.counts[record.status] = outcome.counts.get(record.status, 0) + 1
        listener.ended(record)
        if record.status is Status.INTERRUPTED:
            break
    return outcome


@contextmanager
def _turn(run: PlannedRun, store: Store, listener: Listener, newest: int) -> Iterator[bool]:
    """Waits until no other tool makes a run here; whether this tool is to make this one, or another has."""
    key, has_said_so = run.spec.key(), False
    while True:
        store.check_in_place()
        owner = store.claim(key, run.repeat, run.spec.timeout_seconds)
        if is_here(owner):
            break
        if not has_said_so:
            listener.waiting(owner)
            has_said_so = True
        time.sleep(TURN_SECONDS)
    try:
        yield not store.is_done_since(newest, key, run.repeat)
    finally:
        store.release(owner)
