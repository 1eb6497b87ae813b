"""Times a job through the `Job` protocol: epochs by wall clock, every step raw, evaluation outside the timed region."""

import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any, Protocol

from paceline.contract.job import InputTimes, Job, LiveLoss, LoadingJob, NoiseJob, Service
from paceline.runs.meters.memory import resident
from paceline.runs.pauses.checkpoints import Saver
from paceline.runs.pauses.target import TargetEvaluator
from paceline.runs.wire import EpochEvent, EpochInput, EpochResult, LossEvent, Measurements, StepEvent, TrainingEvent
from paceline.spans import Span, SpanRecorder

# How often progress is reported; a step that ends sooner reports nothing and so costs nothing.
REPORT_NANOSECONDS = 200_000_000
# A report between two steps finds none of its code in the caches and takes about 0.1 ms; where other programs have the
# cores, and a process computes little between reports, they wait for so much of its own time, or for so long.
REPORT_CPU_SECONDS, LATEST_REPORT_NANOSECONDS = 0.05, 1_000_000_000
KIBIBYTE = 1024
# Losses of an epoch that are told while the run goes on; all are in its record.
TOLD_LOSSES = 50

Reporter = Callable[[TrainingEvent], None]


class Pause(Protocol):
    """Something that is done between steps and is in no epoch's time."""

    cpu_seconds: float
    # Whether the run need not go on.
    is_done: bool

    def after_steps(self, count: int) -> int:
        """Counts steps, does what is due after them, and gives the nanoseconds that this took."""


def train(
    job: Job, schedule: Iterable[tuple[int, int]], samples_per_step: int, report: Reporter, saver: Saver | None = None,
    evaluator: TargetEvaluator | None = None,
) -> Measurements:  # fmt: skip
    """The whole training of one process, up to the target where it looks for one and trains alone."""
    epochs: list[EpochResult] = []
    pauses = [pause for pause in (saver, evaluator) if pause is not None]
    for epoch, steps in schedule:
        epochs.append(_epoch(job, epoch, steps, samples_per_step, report, pauses))
        if evaluator is not None and evaluator.is_done:
            break
    # What a process holds is told before anything is loaded.
    memory, details, used = resident(), job.details(), usage()
    checkpoint = saver.finish() if saver is not None else None
    looks = evaluator.looks if evaluator is not None else []
    return Measurements(epochs=epochs, resident=memory, details=details, checkpoint=checkpoint, looks=looks, **used)


def serve(service: Service, recorder: SpanRecorder | None = None) -> Measurements:
    """The whole life of a process that serves others."""
    cpu_started = process_time()
    service.serve()
    serving_cpu_seconds, memory = process_time() - cpu_started, resident()
    return Measurements(
        resident=memory, details=service.details(), serving_cpu_seconds=serving_cpu_seconds,
        spans=recorder.spans if recorder else [], **usage(),
    )  # fmt: skip


def train_instrumented(
    job: Job, schedule: Iterable[tuple[int, int]], samples_per_step: int, report: Reporter, recorder: SpanRecorder
) -> Measurements:
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
            report(StepEvent(epoch=epoch, step=first + 1, steps=steps, samples_per_second=0.0))
        epoch_losses = job.losses()
        losses = None if epoch_losses is None else [*(losses or []), *epoch_losses]
    job.align()
    stamps = [span.start for span in recorder.spans if span.kind == "step"]
    ended = max((span.end for span in recorder.spans if span.kind == "step"), default=0)
    result = EpochResult(epoch=0, stamps=[*stamps, ended], ended=ended, cpu_seconds=0.0, losses=losses, evaluation=None)
    details, used = job.details(), usage()
    return Measurements(epochs=[result], details=details, spans=recorder.complete(), **used)


def _input_of(before: InputTimes, after: InputTimes, waited: list[int]) -> EpochInput:
    """What reading cost in an epoch, from the counts before and after it, and after each step."""
    waits = [later - sooner for sooner, later in pairwise([before.waited, *waited])]
    read = None if after.read is None else after.read - (before.read or 0)
    return EpochInput(waits=waits, read=read, batches=after.batches - before.batches, processes=after.processes)


def usage() -> dict[str, Any]:
    """CPU seconds and peak memory of this process, from its start to now."""
    counts = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_seconds": counts.ru_utime + counts.ru_stime, "peak_memory_bytes": counts.ru_maxrss * KIBIBYTE}


def _epoch(
    job: Job, epoch: int, steps: int, samples_per_step: int, report: Reporter, pauses: Sequence[Pause]
) -> EpochResult:
    clock, stride, step = job.clock, job.stride, job.step
    times = job.input_times if isinstance(job, LoadingJob) else None
    read, waited = replace(times) if times is not None else InputTimes(), list[int]()
    job.align()
    cpu_started, paused_cpu_seconds, paused = process_time(), sum(pause.cpu_seconds for pause in pauses), 0
    stamps = [clock()]
    job.start_epoch(epoch)
    next_report, reported, reported_cpu = stamps[0] + REPORT_NANOSECONDS, stamps[0], cpu_started
    latest_loss = job.latest_loss if isinstance(job, LiveLoss) else _no_loss
    for first in range(0, steps, stride):
        count = min(stride, steps - first)
        step(first, count)
        now = clock() - paused
        stamps.append(now)
        if times is not None:
            waited.append(times.waited)
        is_first = epoch == 0 and first == 0
        if is_first or (now >= next_report and is_due(now - reported, process_time() - reported_cpu)):
            rate = (first + count) * samples_per_step * 1e9 / max(1, now - stamps[0])
            report(StepEvent(epoch=epoch, step=first + count, steps=steps, samples_per_second=rate, loss=latest_loss()))
            next_report, reported, reported_cpu = now + REPORT_NANOSECONDS, now, process_time()
        for pause in pauses:
            paused += pause.after_steps(count)
        if any(pause.is_done for pause in pauses):
            break
    job.wait()
    ended = clock() - paused
    cpu_seconds, memory = process_time() - cpu_started, resident()
    cpu_seconds -= sum(pause.cpu_seconds for pause in pauses) - paused_cpu_seconds
    gradients = job.gradient_squares() if isinstance(job, NoiseJob) else None
    losses, evaluation_started = job.losses(), perf_counter()
    evaluation = job.evaluate()
    result = EpochResult(
        epoch=epoch, stamps=stamps, ended=ended, cpu_seconds=cpu_seconds, losses=losses, evaluation=evaluation,
        gradients=gradients, resident=memory, evaluation_seconds=perf_counter() - evaluation_started, paused=paused,
        input=None if times is None else _input_of(read, times, waited),
    )  # fmt: skip
    steps_made = min(steps, (len(stamps) - 1) * stride)
    rate = steps_made * samples_per_step * 1e9 / max(1, ended - stamps[0])
    if losses:
        report(LossEvent(epoch=epoch, steps=steps_made, losses=evenly_spaced(losses, TOLD_LOSSES)))
    report(EpochEvent(epoch=epoch, steps=steps_made, samples_per_second=rate))
    return result


def is_due(nanoseconds: int, cpu_seconds: float) -> bool:
    """Whether the process may report again, so long after its last report and so much of its own time later."""
    return cpu_seconds >= REPORT_CPU_SECONDS or nanoseconds >= LATEST_REPORT_NANOSECONDS


def _no_loss() -> None:
    """For jobs whose losses are known at the end of an epoch."""


def evenly_spaced(values: Sequence[float], most: int) -> tuple[float, ...]:
    """At most so many of the values, the last one among them."""
    count = min(most, len(values))
    return tuple(values[(number + 1) * len(values) // count - 1] for number in range(count))
