"""The steps of a script as they are noted: clock readings by source, in a list that the worker reads at the end."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns, process_time
from typing import Any, Generic, Literal, TypeVar

# Where steps are learnt from, the one that says most first: what comes before another is taken in its place.
Source = Literal["step", "watch", "callback", "optimizer"]
SOURCES: tuple[Source, ...] = ("step", "watch", "callback", "optimizer")
Batch = TypeVar("Batch")


@dataclass
class ObservedEpoch:
    """Steps that follow each other: a clock reading before the first and one after each, in nanoseconds."""

    stamps: list[int]
    cpu_started: float
    cpu_ended: float = 0.0
    # Of this process alone; None where the script does not say.
    samples: int | None = None
    # Waiting for the next batch, in nanoseconds.
    input_nanoseconds: int = 0
    # What is no training between steps, such as an evaluation, in nanoseconds; stamps leave it out.
    paused: int = 0

    @property
    def steps(self) -> int:
        """Steps with a beginning and an end."""
        return len(self.stamps) - 1


# Is called after each step with its source, the epoch so far and the epoch's number.
OnStep = Callable[[Source, ObservedEpoch, int], None]
# Is called with the start and the end of the wait for a batch, in nanoseconds.
OnBatch = Callable[[int, int], None]


@dataclass
class StepLog:
    """All steps of one process, by the source that they were learnt from."""

    epochs: dict[Source, list[ObservedEpoch]] = field(default_factory=dict)
    on_step: OnStep = lambda _source, _epoch, _number: None
    on_batch: OnBatch = lambda _start, _end: None
    # Optimizer steps, also those that begin an epoch and have no duration.
    optimizer_steps: int = 0
    # Those of other optimizers in between, which are part of a step.
    followed_steps: int = 0
    # Those that a `GradScaler` left out because gradients overflowed; they are among the others.
    skipped_steps: int = 0

    def begin_epoch(self, source: Source) -> None:
        """Notes that the steps which follow belong together; what lies before is in none of them."""
        self.epochs.setdefault(source, []).append(ObservedEpoch([perf_counter_ns()], process_time()))

    def resume(self, source: Source) -> None:
        """Notes that a step begins now and that the time since the last one was spent on something else."""
        epoch = self.epochs[source][-1]
        epoch.paused = perf_counter_ns() - epoch.stamps[-1]

    def end_step(self, source: Source, samples: int | None = None, input_nanoseconds: int = 0) -> None:
        """Notes a step that ends now."""
        epochs = self.epochs[source]
        epoch = epochs[-1]
        epoch.stamps.append(perf_counter_ns() - epoch.paused)
        epoch.cpu_ended = process_time()
        epoch.input_nanoseconds += input_nanoseconds
        if samples is not None:
            epoch.samples = (epoch.samples or 0) + samples
        self.on_step(source, epoch, len(epochs) - 1)

    def best(self) -> tuple[Source | None, list[ObservedEpoch]]:
        """The source that says most among those with steps, and its epochs that have any."""
        for source in SOURCES:
            epochs = [epoch for epoch in self.epochs.get(source, []) if epoch.steps]
            if epochs:
                return source, epochs
        return None, []


_log: StepLog | None = None


def start_log(log: StepLog) -> StepLog:
    """Begins to note the steps of this process; only Paceline's worker calls it."""
    global _log  # noqa: PLW0603 - a process runs one script, and a script calls functions of a module
    _log = log
    return log


def current_log() -> StepLog | None:
    """Where steps are noted; None where the script was not started by Paceline."""
    return _log


@contextmanager
def step(samples: int | None = None) -> Iterator[None]:
    """One optimizer step of a script: `with paceline.step(samples=len(inputs)): ...`.

    `samples` are those of this process; Paceline adds up those of all. What happens between two steps, such as loading
    the next batch, is part of the time of training.
    """
    log = _log
    if log is None:
        yield
        return
    if "step" not in log.epochs:
        log.begin_epoch("step")
    yield
    log.end_step("step", samples)


def watch(loader: Iterable[Batch], samples: Callable[[Batch], int] | None = None) -> Iterable[Batch]:
    """The loader, each of its batches a step: `for batch in paceline.watch(loader): ...`.

    One pass over it is an epoch; what lies between two passes, such as an evaluation, is in neither. Samples are the
    length of the first array in a batch, or what the function `samples` makes of a batch. A pass that is left with
    `break` is without the step that it was left in.
    """
    return loader if _log is None else WatchedLoader(loader, samples, _log)


class WatchedLoader(Generic[Batch]):
    """A loader whose passes are noted; what else it has, such as a length or a sampler, is the loader's own."""

    def __init__(self, loader: Iterable[Batch], samples: Callable[[Batch], int] | None, log: StepLog) -> None:
        self._loader, self._samples, self._log = loader, samples, log

    def __iter__(self) -> Iterator[Batch]:
        log, count_samples = self._log, self._samples or batch_length
        log.begin_epoch("watch")
        asked_at = perf_counter_ns()
        for batch in self._loader:
            there_at = perf_counter_ns()
            log.on_batch(asked_at, there_at)
            count = count_samples(batch)
            yield batch
            log.end_step("watch", count, there_at - asked_at)
            asked_at = perf_counter_ns()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def batch_length(batch: Any) -> int | None:
    """Samples of a batch: the first dimension of its first array; None where it has none."""
    if isinstance(batch, dict) or (hasattr(batch, "values") and hasattr(batch, "keys")):
        batch = list(batch.values())
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, list | tuple):
        return next((length for part in batch if (length := batch_length(part)) is not None), None)
    return None
