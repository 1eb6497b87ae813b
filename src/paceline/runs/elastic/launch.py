"""One planned run with a membership ─► one record; its processes are killed and started on the way."""

import time
from contextlib import ExitStack

from paceline.plan import PlannedRun
from paceline.record import Record, Status
from paceline.runs.elastic.agents import Agents
from paceline.runs.elastic.follow import Course, follow_changes
from paceline.runs.elastic.members import Members
from paceline.runs.elastic.outcome import ElasticEnding, elastic_record
from paceline.runs.elastic.progress import ProgressReader
from paceline.runs.interrupts import heard_interrupts
from paceline.runs.launch import FRESH, OnEvent, schedule, surroundings_of, timestamp
from paceline.runs.launchers import Launcher
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.outcome import Ending
from paceline.runs.wire import RunOrders
from paceline.strategies import strategy
from paceline.systems import System


def launch_elastic(
    run: PlannedRun, study: str, system: System, on_event: OnEvent, *, launcher: Launcher = FRESH
) -> Record:
    """Runs it; whatever happens to its processes, a record comes back and nothing is left running."""
    assert isinstance(launcher, LocalLauncher), "a plan refuses changes of members on other machines"
    spec = run.spec
    by_agents = strategy(spec.strategy).needs.membership == "agents"
    processes = launcher.lay_out(spec, system)
    started_at = timestamp()
    orders = RunOrders(spec=spec, processes=processes, schedule=schedule(spec))
    with ExitStack() as stack:
        with heard_interrupts():
            group = stack.enter_context(launcher.open(orders))
        reader, launched = ProgressReader(group.folder.path), time.perf_counter_ns()
        members = Agents(group, processes) if by_agents else Members(group, processes)
        try:
            with heard_interrupts():
                members.start()
                course = follow_changes(members, spec, reader, launched, on_event)
        except KeyboardInterrupt:
            course = Course(launched, verdict=Status.INTERRUPTED)
        finally:
            members.kill()
        reader.look()
        present = members.present()
        ending = Ending(
            course.codes, course.verdict, spec.timeout_seconds,
            [group.folder.read_report(process.rank) for process in present],
            [group.folder.log_tail(process.rank) for process in present],
        )  # fmt: skip
        machines = group.machines()
    ended = ElasticEnding(ending, present, course.changes, reader.progress(launched), not by_agents, course.too_late)
    surroundings = surroundings_of(spec, system, started_at, launched, machines, ending)
    return elastic_record(run, study, ended, surroundings)
