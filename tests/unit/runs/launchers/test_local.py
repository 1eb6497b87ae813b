"""The launcher of this machine, with a starter that starts nothing of Paceline."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from paceline.contract.context import Process
from paceline.plan import PlannedRun
from paceline.record import Status
from paceline.runs.launch import launch
from paceline.runs.launchers import local
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.starters import NewProcess
from paceline.runs.wire import RunOrders, StepEvent
from paceline.systems import local_system

EVENT = StepEvent(epoch=0, step=1, steps=2, samples_per_second=100.0)


@dataclass
class ScriptStarter:
    """Starts a few lines of Python, which can write to the pipe for events."""

    script: str
    prepared: list[dict[str, str]] = field(default_factory=list)
    processes: list[NewProcess] = field(default_factory=list)

    def prepare(self, environments: list[dict[str, str]]) -> None:
        self.prepared += environments

    def cpu_seconds(self) -> float:
        return 1.5

    def start(self, process: NewProcess) -> "subprocess.Popen[bytes]":
        self.processes.append(process)
        words = [sys.executable, "-c", self.script, str(process.fds[0])]
        with process.log.open("wb") as log:
            return subprocess.Popen(words, stdout=log, pass_fds=process.fds, process_group=0, env=process.environment)


@pytest.fixture
def orders(make_spec):
    processes = tuple(Process(rank, 2, "worker", rank, (0,)) for rank in range(2))
    return RunOrders(spec=make_spec(workers=2), processes=processes, schedule=((0, 2),))


def environments(*_orders):
    return [{**os.environ, "NAME": f"rank {rank}"} for rank in range(2)]


def test_each_process_gets_the_environment_of_its_cores_and_what_all_share(orders):
    first, second = local.process_environments(orders.spec, orders.processes, {"SHARED": "yes"})
    assert first["OMP_NUM_THREADS"] == second["OMP_NUM_THREADS"] == "1"
    assert first["SHARED"] == second["SHARED"] == "yes"


@pytest.fixture
def named_ranks(monkeypatch):
    monkeypatch.setattr(local, "process_environments", environments)


@dataclass
class InterruptedStarter(ScriptStarter):
    """The user presses Ctrl-C when the second process is about to be started."""

    def start(self, process: NewProcess) -> "subprocess.Popen[bytes]":
        if process.rank == 1:
            raise KeyboardInterrupt
        return super().start(process)


def test_a_run_that_is_interrupted_before_all_its_processes_are_there_is_stored_so(orders, named_ranks):
    starter = InterruptedStarter("import time\ntime.sleep(600)")
    run = PlannedRun(spec=orders.spec.model_copy(update={"dataset": "mnist-5k"}), repeat=0)
    record = launch(run, "trial", local_system(), lambda _news: None, launcher=LocalLauncher(starter))
    assert record.status is Status.INTERRUPTED
    assert not starter.processes[0].folder.exists()


def test_events_arrive_whole_and_processes_end_with_their_codes(orders, named_ranks):
    line = EVENT.model_dump_json()
    starter = ScriptStarter(
        f"import os, sys, time\nline = {line!r}\nfd = int(sys.argv[1])\n"
        "if os.environ['NAME'] == 'rank 0':\n"
        "    os.write(fd, (line + '\\n' + line[:9]).encode())\n    time.sleep(0.1)\n"
        "    os.write(fd, (line[9:] + '\\n').encode())\n"
        "print(os.environ['NAME'], flush=True)\nsys.exit(3 if os.environ['NAME'] == 'rank 1' else 0)"
    )
    with LocalLauncher(starter).open(orders) as group:
        assert starter.prepared == environments()
        group.start()
        events = []
        while None in group.exit_codes() or len(events) < 2:
            events += group.events(0.02)
        assert events == [EVENT, EVENT]
        assert group.exit_codes() == [0, 3]
        assert group.log_tails() == ["rank 0\n", "rank 1\n"]
        assert group.reports() == [None, None]
        folder = group.folder.path
        written = group.folder.read_orders()
    assert written.spec == orders.spec
    assert written.port > 0
    assert not folder.exists()


def test_only_the_first_process_inherits_the_socket_where_the_others_find_it(orders):
    starter = ScriptStarter("")
    with LocalLauncher(starter).open(orders) as group:
        group.start()
    assert [len(process.fds) for process in starter.processes] == [2, 1]


def test_no_process_outlives_its_group(orders):
    starter = ScriptStarter("import time\ntime.sleep(600)")
    with LocalLauncher(starter).open(orders) as group:
        group.start()
        processes = list(group.processes)
    assert [process.poll() for process in processes] == [-9, -9]


def test_cpu_seconds_are_those_of_its_starter(orders):
    with LocalLauncher(ScriptStarter("")).open(orders) as group:
        assert group.meters.elsewhere() == 1.5
