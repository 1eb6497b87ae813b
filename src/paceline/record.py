"""`Record`: what a run left. Immutable; written once, when the run ends, whatever way it ended."""

from enum import StrEnum
from math import ceil
from typing import Any, Literal

from pydantic import AliasChoices, Field

from paceline.breakdown import RankBreakdown
from paceline.spec import Frozen, RunSpec


class Status(StrEnum):
    """How a run ended."""

    OK = "ok"
    SKIPPED = "skipped"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


# A run that ended so is a result and is not repeated when its study is run again.
FINAL = frozenset({Status.OK, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.FAILED})


# The code of the finding that a run's samples are steps: its script does not say how many samples they have.
STEPS_COUNTED = "steps_counted"
# The code of the finding that a run's samples came in an order of their own.
OWN_ORDER = "order_of_its_own"
# From this share of a step on, waiting for batches sets the pace.
LEAST_INPUT_SHARE = 0.1


class Finding(Frozen):
    """Something a reader must know beside a number, with what to do about it."""

    code: str
    text: str
    hint: str


class Startup(Frozen):
    """Where the seconds before the first step ended went, for the slowest rank."""

    launch_seconds: float
    import_seconds: float
    build_seconds: float
    first_step_seconds: float
    # Whether several runs shared the import: `import_seconds` is then what it took once, and later runs did not wait.
    forked: bool = False

    @property
    def total_seconds(self) -> float:
        """From the launcher's start of the processes to the end of the first step."""
        return self.launch_seconds + self.import_seconds + self.build_seconds + self.first_step_seconds


class GradientNoise(Frozen):
    """Mean squared norms of gradients over a part of the batch and over all of it, and the noise scale from them."""

    small_batch: int
    big_batch: int
    small_square: float
    big_square: float
    steps: int
    # In samples, with a 90 % interval; None where the gradient is lost in its noise, or too few steps were made.
    scale: float | None = None
    low: float | None = None
    high: float | None = None


class Epoch(Frozen):
    """One pass over the data (or what `steps` left of it); `seconds` is wall clock over all ranks."""

    number: int
    seconds: float
    steps: int
    samples: int
    cpu_seconds: float
    train_loss: float | None
    test_loss: float | None = None
    test_accuracy: float | None = None
    # Of the model's file, by name; None where it is not a finite number.
    test_metrics: dict[str, float | None] = {}
    # After the timed region, of the slowest rank.
    evaluation_seconds: float | None = None
    # By the run's energy source, with what the machine draws when idle.
    joules: float | None = None
    # Where the run asked for the noise of its gradients.
    noise: GradientNoise | None = None

    @property
    def samples_per_second(self) -> float:
        """Samples of all workers together over wall-clock seconds."""
        return self.samples / self.seconds if self.seconds else 0.0


class Look(Frozen):
    """What the test set came to after a step of the run, in a run that looks for a target on its way."""

    step: int
    test_loss: float | None = None
    test_accuracy: float | None = None


class Energy(Frozen):
    """Where the joules of the epochs come from: a counter that was read, or `estimated`; and what was not the run's."""

    source: str
    # What the counter shows when nothing runs; zero for an estimate, whose CPU seconds leave idling out already.
    idle_watts: float = 0.0
    # Of an estimate: what a busy core was taken to draw.
    watts_per_core: float | None = None


class Memory(Frozen):
    """Resident bytes of a process without pages of files (programs and libraries): what it holds by itself."""

    # Right after the framework's import.
    baseline_bytes: int
    # When the steps of the first epoch were done, and the most until then: before any evaluation.
    steady_bytes: int
    peak_bytes: int
    # After the last epoch and its evaluation: growth since `steady_bytes` is that of later epochs and of evaluating.
    final_bytes: int


class GpuUse(Frozen):
    """What a GPU went through during a run, by NVML."""

    name: str
    # Mean share of the time in which it computed anything.
    utilisation: float
    # Middle clock of its multiprocessors while it was busy, and the highest that it has.
    clock_mhz: float
    most_clock_mhz: float
    # What held its clock back, and in which share of the readings.
    held_back: dict[str, float] = {}
    # Processes that used it before the run began.
    other_processes: int = 0
    # The machine that it is in, where the run was on a fleet.
    machine: str = ""


class Save(Frozen):
    """One checkpoint that a process wrote: after which step of the run, in which time, and its bytes."""

    step: int
    seconds: float
    bytes: int


class RankCheckpoint(Frozen):
    """What a process saved, until its bytes were on the disk; the last save was loaded and is what was held."""

    saves: tuple[Save, ...]
    load_seconds: float


class Loading(Frozen):
    """What batches cost a rank that were read while it trained: mean seconds of its steps after warm-up."""

    # Loader processes that read for it; 0 where it read for itself.
    processes: int
    # In which it stood still for its batch, and the whole step.
    wait_seconds: float
    step_seconds: float
    # Which reading a batch takes one process; None where that cannot be seen.
    read_seconds: float | None = None

    @property
    def share(self) -> float:
        """The share of a step in which the rank stood still for its batch."""
        return self.wait_seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def limits(self) -> bool:
        """Whether reading sets the pace, in a measure that is worth a word."""
        return self.share >= LEAST_INPUT_SHARE

    @property
    def enough_processes(self) -> int:
        """Loader processes that together read a batch in the time of the rest of a step."""
        rest = self.step_seconds - self.wait_seconds
        # Where reading cannot be seen, the processes that are there give one batch in each step.
        read = self.processes * self.step_seconds if self.read_seconds is None else self.read_seconds
        return max(1, ceil(read / rest)) if rest > 0 else self.processes + 1


class Rank(Frozen):
    """One process of the run."""

    rank: int
    role: str
    cores: tuple[int, ...]
    cpu_seconds: float
    peak_memory_bytes: int
    memory: Memory | None = None
    details: dict[str, Any] = {}
    # The machine that it was on, where the run was on a fleet.
    machine: str = ""
    # None where it saved nothing.
    checkpoint: RankCheckpoint | None = None
    # None where all its data lay on the device.
    loading: Loading | None = None


class MachineRecord(Frozen):
    """A machine of a fleet that a run was on, and its clock against the launcher's."""

    name: str
    # Where the other machines reached it, and what it calls itself.
    address: str
    host: str
    # How far its clock was ahead, by which stamps of its processes were moved, and by how much that may be wrong.
    clock_offset_seconds: float = 0.0
    clock_error_seconds: float = 0.0


class MemberChange(Frozen):
    """A departure or an arrival that was made: at which step it was due, and when, in seconds of the run."""

    kind: Literal["leave", "join"]
    step: int
    seconds: float


class Progress(Frozen):
    """Samples that were trained on: when, in seconds of the run, which part of which step, and by which workers."""

    seconds: float
    # From 1 on; a step that is made again has its number again.
    step: int
    part: int = 0
    samples: int
    loss: float | None = None
    trained_by: tuple[int, ...] = ()


class TimelineSpan(Frozen):
    """One stretch of one rank's time, in microseconds from the start of the first step that is kept."""

    rank: int
    track: str
    kind: str
    name: str
    start: float
    duration: float
    bytes: int = 0


class Record(Frozen):
    """One run, whole. `step_seconds[rank]` and `losses` are raw: one value per optimizer step."""

    study: str
    spec: RunSpec
    repeat: int
    status: Status
    reason: str | None = None
    started_at: str
    wall_seconds: float
    startup: Startup | None = None
    epochs: tuple[Epoch, ...] = ()
    ranks: tuple[Rank, ...] = ()
    losses: tuple[float | None, ...] = ()
    # In the order of steps; each is at most a twentieth of its step after the one before.
    looks: tuple[Look, ...] = ()
    step_seconds: dict[int, tuple[float, ...]] = {}
    # Of data that are read while training goes on: what each rank waited for its batch, in each step.
    input_seconds: dict[int, tuple[float, ...]] = {}
    # Steps until the durations settled, and the middle duration of those after; the slowest rank's of each step.
    warm_up_steps: int = 0
    steady_step_seconds: float | None = None
    findings: tuple[Finding, ...] = ()
    parameters: int | None = None
    energy: Energy | None = None
    gpus: tuple[GpuUse, ...] = ()
    # Those of a fleet; none where the run was on the launcher's own machine.
    machines: tuple[MachineRecord, ...] = ()
    # Of a run with a membership: the changes that were made, and every step of every worker that trained.
    changes: tuple[MemberChange, ...] = ()
    progress: tuple[Progress, ...] = ()
    # Of an instrumented run: where each rank's time went, and the spans of a few steps.
    breakdown: tuple[RankBreakdown, ...] = ()
    # Results files call the timeline `trace`.
    timeline: tuple[TimelineSpan, ...] = Field(
        default=(), validation_alias=AliasChoices("trace", "timeline"), serialization_alias="trace"
    )
    environment: dict[str, Any] = {}
    log_tail: str = ""
    id: int | None = None

    @property
    def key(self) -> str:
        """The identity of the configuration that ran."""
        return self.spec.key()

    @property
    def ok(self) -> bool:
        """Whether the run finished as asked."""
        return self.status is Status.OK

    @property
    def steps_to_target(self) -> int | None:
        """The step after which the test set first came to the run's target; None where it never did."""
        for look in self.looks:
            accuracy, loss = look.test_accuracy, look.test_loss
            if self.spec.target_accuracy is not None and accuracy is not None and accuracy >= self.spec.target_accuracy:
                return look.step
            if self.spec.target_loss is not None and loss is not None and loss <= self.spec.target_loss:
                return look.step
        return None

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, in samples, of the last epoch that could tell it."""
        known = [epoch.noise.scale for epoch in self.epochs if epoch.noise is not None]
        return next((scale for scale in reversed(known) if scale is not None), None)

    @property
    def steady(self) -> Epoch | None:
        """The last epoch, free of first-epoch costs when there were two or more."""
        return self.epochs[-1] if self.epochs else None
