"""Times a job through the `Job` protocol: epochs by wall clock, every step raw, evaluation outside the timed region."""

import resource
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter, process_time
from typing import Any, Protocol

from paceline.contract.job import Evaluation, Job, Service
from paceline.runs.meters.memory import Resident, resident
from paceline.spans import Span, SpanRecorder

# How often the terminal hears of progress; a step that ends sooner reports nothing and so costs nothing.
REPORT_NANOSECONDS = 200_000_000
KIBIBYTE = 1024


class Reporter(Protocol):
    """Where progress goes."""

    def __call__(self, **event: Any) -> None:
        """One event."""


@dataclass(frozen=True)
class EpochPart:
    """One process's view of an epoch: clock readings in nanoseconds, one per step and one before."""

    epoch: int
    stamps: list[int]
    ended: int
    cpu_seconds: float
    losses: list[float] | None
    evaluation: Evaluation | None
    # When its steps were done, before evaluation.
    resident: Resident | None = None
    # Wall clock, whatever clock the job keeps.
    evaluation_seconds: float = 0.0


@dataclass(frozen=True)
class RankPart:
    """What one process hands back to the launcher."""

    epochs: list[EpochPart] = field(default_factory=list)
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    # At the end, before anything was gathered for the record.
    resident: Resident | None = None
    # Of a process that serves others: CPU seconds while it did.
    serving_cpu_seconds: float = 0.0
    # Of an instrumented run: what this process did when.
    spans: list[Span] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def train(job: Job, schedule: Iterable[tuple[int, int]], samples_per_step: int, report: Reporter) -> RankPart:
    """The whole training of one process."""
    epochs = [_epoch(job, epoch, steps, samples_per_step, report) for epoch, steps in schedule]
    held = resident()
    return replace(_part(epochs, job.details()), resident=held)


def serve(service: Service, recorder: SpanRecorder | None = None) -> RankPart:
    """The whole life of a process that serves others."""
    cpu_started = process_time()
    service.serve()
    served, held = process_time() - cpu_started, resident()
    part = _part([], service.details())
    return replace(part, resident=held, serving_cpu_seconds=served, spans=recorder.spans if recorder else [])


def train_instrumented(
    job: Job, schedule: Iterable[tuple[int, int]], samples_per_step: int, report: Reporter, recorder: SpanRecorder
) -> RankPart:
    """The training of one process of an instrumented run: no evaluation, each step a span around what happens in it."""
    losses: list[float] | None = []
    for epoch, steps in schedule:
        job.align()
        job.start_epoch(epoch)
        for first in range(0, steps, job.stride):
            began = job.clock()
            job.step(first, min(job.stride, steps - first))
            job.wait()
            recorder.add(Span("step", f"step {first + 1}", began, job.clock()))
            report(kind="step", epoch=epoch, step=first + 1, steps=steps, samples_per_second=0.0)
        own = job.losses()
        losses = None if own is None else [*(losses or []), *own]
    job.align()
    stamps = [span.start for span in recorder.spans if span.kind == "step"]
    ended = max((span.end for span in recorder.spans if span.kind == "step"), default=0)
    part = EpochPart(0, [*stamps, ended], ended, 0.0, losses, None)
    return replace(_part([part], job.details()), spans=recorder.complete())


def _part(epochs: list[EpochPart], details: dict[str, Any]) -> RankPart:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return RankPart(epochs, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * KIBIBYTE, details)


def _epoch(job: Job, epoch: int, steps: int, samples_per_step: int, report: Reporter) -> EpochPart:
    clock, stride, step = job.clock, job.stride, job.step
    job.align()
    cpu_started = process_time()
    stamps = [clock()]
    job.start_epoch(epoch)
    next_report = stamps[0] + REPORT_NANOSECONDS
    for first in range(0, steps, stride):
        count = min(stride, steps - first)
        step(first, count)
        now = clock()
        stamps.append(now)
        if now >= next_report or (epoch == 0 and first == 0):
            rate = (first + count) * samples_per_step * 1e9 / max(1, now - stamps[0])
            report(kind="step", epoch=epoch, step=first + count, steps=steps, samples_per_second=rate)
            next_report = now + REPORT_NANOSECONDS
    job.wait()
    ended = clock()
    cpu_seconds, held = process_time() - cpu_started, resident()
    losses, evaluating = job.losses(), perf_counter()
    evaluation = job.evaluate()
    part = EpochPart(epoch, stamps, ended, cpu_seconds, losses, evaluation, held, perf_counter() - evaluating)
    report(
        kind="epoch",
        epoch=epoch,
        steps=steps,
        samples_per_second=steps * samples_per_step * 1e9 / max(1, ended - stamps[0]),
    )
    return part
