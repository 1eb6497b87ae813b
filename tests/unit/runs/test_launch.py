"""From a planned run to its record, through the protocol of launchers alone: no process is started here."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paceline.plan import PlannedRun, complete
from paceline.record import Status
from paceline.runs.devices import lay_out_run
from paceline.runs.launch import INSTRUMENTED_STEPS, launch, schedule, skipped_record
from paceline.runs.meters.environment import environment
from paceline.runs.wire import (
    EpochEvent,
    EpochResult,
    MachineReport,
    Measurements,
    ProcessStart,
    RankError,
    RankResult,
    RunOrders,
    StepEvent,
)
from paceline.systems import local_system

STEP = StepEvent(epoch=0, step=1, steps=2, samples_per_second=100.0)
EPOCH = EpochResult(epoch=0, stamps=[10, 20, 30], ended=40, cpu_seconds=0.5, losses=[2.0, 1.0], evaluation=None)
GOOD = RankResult(start=ProcessStart(started=1, imported=2, opened=3), measured=Measurements(epochs=[EPOCH]))


@dataclass
class PretendGroup:
    """Processes that end as they are told to, without having been there."""

    code: int | None
    report: RankResult | RankError | None
    calls: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.calls.append("start")

    def events(self, seconds: float) -> list[StepEvent | EpochEvent]:
        self.calls.append("events")
        return [STEP]

    def exit_codes(self) -> list[int | None]:
        return [self.code]

    def troubles(self) -> list[str]:
        return []

    def machines(self) -> list[MachineReport]:
        return [MachineReport(environment=environment())]

    def kill(self) -> None:
        self.calls.append("kill")

    def reports(self) -> list[RankResult | RankError | None]:
        self.calls.append("reports")
        return [self.report]

    def log_tails(self) -> list[str]:
        return ["the end of the log"]

    def save_weights(self, file: Path) -> None:
        file.write_text("weights")


@dataclass
class PretendLauncher:
    """A whole launcher: nothing else has to be known to `launch`."""

    code: int | None = 0
    report: RankResult | RankError | None = GOOD
    orders: list[RunOrders] = field(default_factory=list)
    groups: list[PretendGroup] = field(default_factory=list)

    def lay_out(self, spec, system):
        return lay_out_run(spec, system.cores)

    @contextmanager
    def open(self, orders: RunOrders) -> Iterator[PretendGroup]:
        self.orders.append(orders)
        self.groups.append(PretendGroup(self.code, self.report))
        yield self.groups[-1]
        self.groups[-1].calls.append("close")


@pytest.fixture
def launched(make_spec):
    """The record of a run that this launcher made."""

    def make(launcher, on_event=lambda _event: None, weights_to=None, **fields):
        run = PlannedRun(complete(make_spec(**fields)), 1)
        return launch(run, "trial", local_system(), on_event, launcher=launcher, weights_to=weights_to)

    return make


def test_a_launcher_gets_orders_and_its_results_become_the_record(launched):
    launcher, events = PretendLauncher(), []
    record = launched(launcher, events.append)
    (orders,) = launcher.orders
    assert (record.status, record.losses, record.repeat) == (Status.OK, (2.0, 1.0), 1)
    assert record.parameters is not None
    assert orders.spec == record.spec
    assert [process.rank for process in orders.processes] == [0]
    assert orders.schedule == schedule(record.spec)
    assert not orders.keep_weights
    assert events == [STEP]


def test_results_are_read_when_every_process_is_gone_and_before_the_group_is(launched):
    launcher = PretendLauncher()
    launched(launcher)
    assert launcher.groups[0].calls == ["start", "events", "kill", "reports", "close"]


def test_a_process_that_failed_leaves_its_error_and_its_log(launched):
    error = RankError(kind="failed", type="RuntimeError", text="out of luck", failed_at=1)
    record = launched(PretendLauncher(code=1, report=error))
    assert (record.status, record.reason) == (Status.FAILED, "rank 0 (worker): RuntimeError: out of luck")
    assert record.log_tail == "the end of the log"


def test_a_run_past_its_time_is_ended(launched):
    record = launched(PretendLauncher(code=None, report=None), timeout_seconds=0.01)
    assert (record.status, record.reason) == (Status.TIMED_OUT, "did not end within 0.01 s (timeout_seconds)")


def test_an_interrupt_ends_the_run_and_is_its_status(launched):
    def interrupt(_event):
        raise KeyboardInterrupt

    launcher = PretendLauncher(code=None, report=None)
    assert launched(launcher, interrupt).status is Status.INTERRUPTED
    assert "kill" in launcher.groups[0].calls


def test_weights_are_kept_where_they_are_wanted(launched, tmp_path):
    launcher = PretendLauncher()
    launched(launcher, weights_to=tmp_path / "weights.npz")
    assert launcher.orders[0].keep_weights
    assert (tmp_path / "weights.npz").read_text() == "weights"


def test_an_instrumented_run_makes_a_few_steps_only(make_spec):
    spec = complete(make_spec(steps=1000, instrumented=True))
    assert sum(steps for _, steps in schedule(spec)) == INSTRUMENTED_STEPS


def test_a_skipped_run_has_its_reason(make_spec):
    record = skipped_record(PlannedRun(make_spec(), 0, "no such device"), "trial")
    assert (record.status, record.reason, record.epochs) == (Status.SKIPPED, "no such device", ())
