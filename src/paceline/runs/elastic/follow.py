"""Follows a run, kills a worker and starts another at the steps that its membership names."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

from paceline.membership import Change
from paceline.record import MemberChange, Status
from paceline.runs.elastic.progress import ProgressReader
from paceline.runs.processes import POLL_SECONDS
from paceline.runs.wire import StepEvent
from paceline.spec import RunSpec

# After one process failed, how long the others may take to say why they failed too.
GRACE_SECONDS = 1.0
REPORT_SECONDS = 0.2


class OpenGroup(Protocol):
    """Processes of a run, of which the last worker can be killed and replaced."""

    def leave(self) -> None:
        """Kills the last worker without warning."""

    def join(self) -> None:
        """Starts a worker in its place."""

    def poll(self, seconds: float) -> list[int | None]:
        """Waits at most so long; gives the exit code of each process that is a member, None while it runs."""

    def only_last_worker_runs(self) -> bool:
        """Whether all members but the last worker have ended well."""


@dataclass
class Course:
    """What became of a run: its changes, exit codes, and the status where it is not for the processes to say."""

    launched: int = 0
    changes: list[MemberChange] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)
    verdict: Status | None = None
    # Whether the run was over before a worker that had been started could train.
    too_late: bool = False


def follow_changes(
    group: OpenGroup, spec: RunSpec, reader: ProgressReader, launched: int, on_event: Callable[[StepEvent], None]
) -> Course:
    """Waits until all members have ended, one has failed, the time is up, or the user interrupts."""
    assert spec.membership is not None
    course, pending = Course(launched), list(spec.membership.changes)
    deadline, next_report = time.monotonic() + spec.timeout_seconds, 0.0
    try:
        while True:
            course.codes = group.poll(POLL_SECONDS)
            reached = reader.look()
            if pending and reached >= pending[0].step:
                course.changes.append(_make(group, pending.pop(0), launched))
                continue
            if time.monotonic() > next_report:
                on_event(_event(reader, spec, launched))
                next_report = time.monotonic() + REPORT_SECONDS
            if all(code is not None for code in course.codes):
                return course
            if any(course.codes):
                course.codes = _codes_after_grace(group)
                return course
            if _is_too_late(group, spec, reader, course):
                course.too_late = True
                return course
            if time.monotonic() > deadline:
                course.verdict = Status.TIMED_OUT
                return course
    except KeyboardInterrupt:
        course.verdict = Status.INTERRUPTED
        return course


def _is_too_late(group: OpenGroup, spec: RunSpec, reader: ProgressReader, course: Course) -> bool:
    """Whether a worker that joined waits for others who are done."""
    if not course.changes or course.changes[-1].kind != "join" or not group.only_last_worker_runs():
        return False
    since = course.launched + round(course.changes[-1].seconds * 1e9)
    return not any(note.at > since and spec.workers - 1 in note.trained_by for note in reader.notes)


def _make(group: OpenGroup, change: Change, launched: int) -> MemberChange:
    made_at = perf_counter_ns()
    if change.kind == "leave":
        group.leave()
    else:
        group.join()
    return MemberChange(kind=change.kind, step=change.step, seconds=(made_at - launched) / 1e9)


def _codes_after_grace(group: OpenGroup) -> list[int | None]:
    until = time.monotonic() + GRACE_SECONDS
    codes = group.poll(POLL_SECONDS)
    while time.monotonic() < until and any(code is None for code in codes):
        codes = group.poll(POLL_SECONDS)
    return codes


def _event(reader: ProgressReader, spec: RunSpec, launched: int) -> StepEvent:
    seconds = (perf_counter_ns() - launched) / 1e9
    rate = reader.reached * spec.samples_per_step / max(seconds, POLL_SECONDS)
    loss = reader.notes[-1].loss if reader.notes else None
    return StepEvent(epoch=0, step=reader.reached, steps=spec.steps or 0, samples_per_second=rate, loss=loss)
