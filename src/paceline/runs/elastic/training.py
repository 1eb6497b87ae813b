"""Training in a run whose workers come and go one by one: steps are noted as they are made, and nobody waits."""

from collections.abc import Iterable
from time import process_time

from paceline.contract.job import Job, OpenJob
from paceline.runs.elastic.progress import ProgressNotes
from paceline.runs.measure import usage
from paceline.runs.meters.memory import resident
from paceline.runs.wire import EpochResult, Measurements


def train_open(job: Job, schedule: Iterable[tuple[int, int]], first: int, notes: ProgressNotes) -> Measurements:
    """The training of one process from a step on."""
    cpu_started, stamps, done = process_time(), [job.clock()], 0
    for epoch, steps in schedule:
        start = max(0, first - done)
        if start < steps:
            _epoch(job, epoch, range(start, steps), done, notes, stamps)
        done += steps
    return as_one_epoch(job, stamps, cpu_started)


def as_one_epoch(job: Job, stamps: list[int], cpu_started: float) -> Measurements:
    """What a process measured of all its steps, after its evaluation; a run with a membership counts as one epoch."""
    evaluation = job.evaluate()
    view = EpochResult(
        epoch=0, stamps=stamps, ended=job.clock(), cpu_seconds=process_time() - cpu_started, losses=None,
        evaluation=evaluation,
    )  # fmt: skip
    return Measurements(epochs=[view], resident=resident(), details=job.details(), **usage())


def _epoch(job: Job, epoch: int, numbers: range, done: int, notes: ProgressNotes, stamps: list[int]) -> None:
    assert isinstance(job, OpenJob), "its strategy says that its workers may come and go"
    noted = 0
    job.start_epoch(epoch)
    for number in numbers:
        job.step(number, 1)
        stamps.append(job.clock())
        if number == numbers[-1]:
            job.wait()
        # A job that hands its steps out knows their losses later than it makes them.
        losses = job.losses() or []
        for place in range(noted, len(losses)):
            notes.add(done + numbers.start + place + 1, losses[place], job.share(place))
        noted = len(losses)
