"""What crosses between processes: a run's orders, events and results, replies of a probe, and requests to fork.

Every value travels as JSON and is defined here once, for the side that writes it and the side that reads it.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from paceline.contract.context import Process
from paceline.contract.job import Evaluation, GradientSquares
from paceline.contract.trace import Trace
from paceline.contract.user_model_facts import UserModelFacts
from paceline.link import NetworkLink
from paceline.record import Energy, Finding, GpuUse, RankCheckpoint
from paceline.runs.meters.load import Reading
from paceline.runs.meters.memory import Resident
from paceline.spans import Span
from paceline.spec import RunSpec
from paceline.systems.gpu_memory import GpuMemory

# The note of a process on several machines that says which data it trained on.
DATA_DIGEST = "data_digest"
# The length of a message between a fork server and its client, at most.
MESSAGE_BYTES = 1 << 16


class Message(BaseModel):
    """A value on the wire: it cannot be changed and has no unknown keys. Its numbers may be infinite or NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class RunOrders(Message):
    """What all processes of a run are asked to do together."""

    spec: RunSpec
    processes: tuple[Process, ...]
    # The number of each epoch and of the optimizer steps in it.
    schedule: tuple[tuple[int, int], ...]
    keep_weights: bool = False


class WorkerOrders(RunOrders):
    """The orders as a worker reads them: the launcher has added the address where the processes meet."""

    host: str
    port: int
    # Where checkpoints go; None where the run makes none.
    checkpoints: Path | None = None


class StepEvent(Message):
    """A worker has made a step. Its rate is that of the epoch so far, over all workers."""

    kind: Literal["step"] = "step"
    epoch: int
    step: int
    steps: int
    samples_per_second: float
    # Of this worker's share of a step that is done, where reading it waits for nothing.
    loss: float | None = None


class EpochEvent(Message):
    """A worker has finished an epoch and its evaluation."""

    kind: Literal["epoch"] = "epoch"
    epoch: int
    steps: int
    samples_per_second: float


class LossEvent(Message):
    """The losses of an epoch's steps, of one worker's share: some of them, evenly spaced, and the last."""

    kind: Literal["losses"] = "losses"
    epoch: int
    steps: int
    losses: tuple[float, ...]


class UseEvent(Message):
    """What the processes of a run use on one machine: cores on the mean since the last such event, bytes as of now."""

    kind: Literal["use"] = "use"
    # As the fleet numbers it.
    machine: int = 0
    cpu_cores: float
    memory_bytes: int
    # Of the GPUs that the run uses, on the mean, and what they hold together; None on cores.
    gpu_share: float | None = None
    gpu_memory_bytes: int | None = None


class LogEvent(Message):
    """What a process has printed since the last such event; of much, the end."""

    kind: Literal["log"] = "log"
    rank: int
    text: str


class Published(Message):
    """A short text that a process leaves for the others, on its way to their machines (`contract.context.Exchange`)."""

    kind: Literal["published"] = "published"
    name: str
    rank: int
    value: str


# What a process itself tells while it trains, and what its launcher sees beside that.
TrainingEvent = StepEvent | EpochEvent | LossEvent
RunNews = TrainingEvent | UseEvent | LogEvent
Event = Annotated[TrainingEvent | Published, Field(discriminator="kind")]


class EpochInput(Message):
    """What reading the batches of an epoch cost one process, in nanoseconds."""

    # In which it stood still for the batch of each step.
    waits: list[int]
    # Which reading them took, in whichever process; None where that cannot be seen.
    read: int | None
    batches: int
    processes: int


class EpochResult(Message):
    """One process's view of an epoch: clock readings in nanoseconds, one before the first step and one per step."""

    epoch: int
    stamps: list[int]
    ended: int
    cpu_seconds: float
    losses: list[float] | None
    evaluation: Evaluation | None
    # None where the run does not ask for the noise of its gradients.
    gradients: GradientSquares | None = None
    # When the steps were done, before evaluation.
    resident: Resident | None = None
    # By wall clock, whatever clock the job keeps.
    evaluation_seconds: float = 0.0
    # What saving took before `ended`, in nanoseconds; stamps leave it out.
    paused: int = 0
    # Of this process alone, in a run of a script that says how many; otherwise they follow from the run's batch.
    samples: int | None = None
    # None where all data lie on the device.
    input: EpochInput | None = None


class LookResult(Message):
    """What one process found on its part of the test set after a step of the run."""

    step: int
    evaluation: Evaluation | None


class Measurements(Message):
    """What one process measured while it trained, or while it served those that do."""

    epochs: list[EpochResult] = []
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    # What the strategy wants in the record.
    details: dict[str, Any] = {}
    # At the end, before anything was gathered for the record.
    resident: Resident | None = None
    # CPU seconds of a process that serves others while it did; None for one that trains.
    serving_cpu_seconds: float | None = None
    # What a process of an instrumented run did when.
    spans: list[Span] = []
    # Of a run that looks for a target on its way.
    looks: list[LookResult] = []
    # None where nothing was saved, or other processes saved it.
    checkpoint: RankCheckpoint | None = None


class ProcessStart(Message):
    """When a process came to life, in nanoseconds of the launcher's clock."""

    started: int
    imported: int
    opened: int
    # How long the import took that a forked process shares with others; 0 for a process that imported by itself.
    shared_import_nanoseconds: int = 0
    # What the process held in memory after its imports.
    baseline_bytes: int | None = None


class RankResult(Message):
    """What a process that did its part hands back."""

    kind: Literal["ok"] = "ok"
    start: ProcessStart
    measured: Measurements
    # What setting up found out and the record should have, beside the details.
    notes: dict[str, Any] = {}
    # The share of its time in which the process was ready to run and had no core.
    run_queue_share: float | None = None


class RankError(Message):
    """The exception that ended a process: its kind, from its type, its words, and when it was raised."""

    kind: Literal["user_error", "out_of_memory", "failed"]
    type: str
    text: str
    failed_at: int


RankReport = Annotated[RankResult | RankError, Field(discriminator="kind")]


class ClockOffset(Message):
    """How far a machine's clock is ahead of the launcher's, in nanoseconds, and by how much that may be wrong."""

    offset: int = 0
    error: int = 0


class MachineReport(Message):
    """What the meters of a machine read during a run."""

    # As the fleet calls it; empty for the machine of the launcher.
    name: str = ""
    address: str = ""
    boot_id: str = ""
    environment: dict[str, Any] = {}
    # The accounts of its kernel before the run and after it, where it keeps any.
    load: tuple[Reading, Reading] | None = None
    energy: Energy | None = None
    # The clock and joules of each reading.
    energy_readings: list[tuple[int, float]] = []
    gpus: tuple[GpuUse, ...] = ()
    clock: ClockOffset = ClockOffset()
    # What its launcher has to say of how the processes were run there.
    findings: tuple[Finding, ...] = ()


class ProbeReply(Message):
    """The result of probing a user's model: facts, or what is wrong with it."""

    facts: UserModelFacts | None = None
    error: str | None = None


class TraceRequest(Message):
    """Asks for traces of steps of one worker, on one kind of GPU."""

    specs: tuple[RunSpec, ...]
    gpu: GpuMemory
    # Whether operations keep the calls that they are of.
    keeps_calls: bool = False


class TraceReply(Message):
    """One trace for each step that was asked for, or why there is none."""

    traces: tuple[Trace | str, ...] = ()


class ForkRequest(Message):
    """Asks a fork server for a process that calls `entry`, a `module:function`, with the argument."""

    entry: str
    argument: str
    log: Path
    # Variables that the server itself does not have.
    environment: dict[str, str] = {}


class ForkedWorker(Message):
    """The argument of a forked process of a run."""

    folder: Path
    rank: int
    import_nanoseconds: int


class LinkRequest(Message):
    """Asks the keeper of a run's network for a namespace per process, and that link between any two of them."""

    link: NetworkLink
    processes: int
    # Where frames are relayed: the cores for that.
    cores: tuple[int, ...]
    # Whether the keeper must first become root of a user namespace of its own.
    as_own_root: bool = False
    # Whether the keeper carries every frame itself, because the kernel cannot delay them.
    relay: bool = False


class LinksReady(Message):
    """The network of a run is there: for each process, the namespaces that it enters in turn, and its address."""

    namespaces: list[list[str]]
    addresses: list[str]
    # The name of each process's interface in its namespace.
    interface: str


class ServerReady(Message):
    """A fork server has imported its modules. Only a process with a single thread can be forked safely."""

    threads: int
    import_nanoseconds: int


class ProcessStarted(Message):
    """A fork server has started a process."""

    pid: int


class ProcessEnded(Message):
    """A process of a fork server has ended."""

    pid: int
    code: int


EVENT: TypeAdapter[TrainingEvent | Published] = TypeAdapter(Event)
RANK_REPORT: TypeAdapter[RankResult | RankError] = TypeAdapter(RankReport)
SERVER_MESSAGE: TypeAdapter[ProcessStarted | ProcessEnded] = TypeAdapter(ProcessStarted | ProcessEnded)
