"""What processes that measure a GPU are asked, and what they answer."""

from pathlib import Path
from typing import Literal

from paceline.costs.operations import Operation
from paceline.runs.wire import Message
from paceline.spec import Execution, Precision, RunSpec

# What a process can measure, in this order: `power` keeps the GPU busy for a while.
Part = Literal["products", "convolutions", "attention", "memory", "updates", "host", "replay", "power", "links"]
Where = Literal["cpu", "cuda", "cuda-slice"]


class TimedOperation(Message):
    """One operation and its seconds on the device alone."""

    operation: Operation
    seconds: float


class HostTiming(Message):
    """A step of a tiny model whose seconds are the host's: which one, in which precision, and how it ran."""

    model: str
    execution: Execution
    precision: Precision
    seconds: float


class ModelHostTiming(Message):
    """What the host takes for a whole eager step of a model that was given, by the precision of the run."""

    precision: Precision
    seconds: float


class TimedTransfer(Message):
    """One kind of transfer of so many bytes between all ranks."""

    kind: str
    payload_bytes: int
    seconds: float


class GpuRequest(Message):
    """What one of several processes is to measure, and for how long at most each part."""

    parts: tuple[Part, ...]
    seconds: dict[str, float]
    device: Where
    rank: int = 0
    world: int = 1
    # Larger operations of the grid are left out: what a processor without a GPU is tried with is small.
    most_flops: float = float("inf")
    # How much of the GPU the process has: a slice gets smaller operations, so that they take no longer.
    share: float = 1.0
    # Of a model that is given: its operations.
    replay: tuple[Operation, ...] = ()
    # The same model's steps with few samples, for which the host takes longer than the device.
    host_steps: tuple[RunSpec, ...] = ()
    # Where ranks meet, where progress is told, and where the answer goes.
    store: Path
    progress: Path
    answer: Path


class GpuAnswer(Message):
    """What was measured; a part that failed is not there, and `failures` says why."""

    gpu: str = ""
    memory_bytes: int = 0
    multiprocessors: int = 0
    torch: str = ""
    nccl: str = ""
    operations: tuple[TimedOperation, ...] = ()
    replayed: tuple[TimedOperation, ...] = ()
    host: tuple[HostTiming, ...] = ()
    model_host: tuple[ModelHostTiming, ...] = ()
    idle_watts: float | None = None
    busy_watts: float | None = None
    transfers: tuple[TimedTransfer, ...] = ()
    # Seconds of computation lost in each second of a transfer; how much longer operations take while all ranks compute,
    # by kind or name.
    interference: float | None = None
    # How many times as long a transfer takes while the device computes.
    overlap_slowdown: float | None = None
    crowding: dict[str, float] = {}
    failures: dict[str, str] = {}
    # Cases of each part that there was no time for.
    left_out: dict[str, int] = {}
