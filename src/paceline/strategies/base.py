"""The contract of a strategy: what it is (`Strategy`), what a worker is given (`Context`), what it hands back (`Job`).

`runs/measure.py` drives every strategy through `Job` alone, so a new strategy is one new file in this folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from paceline.data import DataRequest, DataSet, data_source
from paceline.data.order import BatchOrder
from paceline.footprint import Footprint, ModelFacts
from paceline.spans import Tape
from paceline.spec import Device, Execution, Precision, RunSpec, Scalar
from paceline.systems import System
from paceline.workloads import workload
from paceline.workloads.base import Layers, Weights, initial_weights
from paceline.workloads.layers import Shape
from paceline.workloads.own import OWN_DATA, OwnModel, load_own

Family = Literal["single", "data", "model", "server", "hybrid", "fake"]


@dataclass(frozen=True)
class Knob:
    """A setting of one strategy's own."""

    name: str
    default: Scalar
    about: str
    choices: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class Role:
    """Processes of one kind. A process that drives several workers from within has `workers_each` above one."""

    name: str
    processes: int
    workers_each: int = 1


@dataclass(frozen=True)
class Process:
    """One process of a run: its number among all, and its role."""

    rank: int
    world: int
    role: str
    index: int
    cores: tuple[int, ...]
    # How many workers it drives.
    workers_each: int = 1


@dataclass(frozen=True)
class Rendezvous:
    """Where the processes of a run meet. The launcher holds the port open, so no other program can take it."""

    host: str
    port: int
    listen_fd: int | None
    folder: Path


@dataclass(frozen=True)
class Model:
    """What to train: built-in layers, or the user's own."""

    layers: Layers = ()
    own: OwnModel | None = None


@dataclass(frozen=True)
class Context:
    """All that `open_job` needs to set up one process; model and data are loaded when first asked for."""

    spec: RunSpec
    process: Process
    rendezvous: Rendezvous

    @cached_property
    def tape(self) -> Tape | None:
        """Where an instrumented run notes what it does when; None in a timed one."""
        return Tape() if self.spec.instrumented else None

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What setting up found out and the record should have, beside the job's own details."""
        return {}

    @cached_property
    def own(self) -> OwnModel | None:
        """The user's model file, run once."""
        return load_own(self.spec.model) if self.spec.model is not None else None

    @cached_property
    def data(self) -> DataSet:
        """The run's data set."""
        if self.own is not None and self.spec.dataset == OWN_DATA:
            return self.own.load_data(self.spec.train_samples)
        return data_source(str(self.spec.dataset)).load(data_request(self.spec))

    @cached_property
    def order(self) -> BatchOrder:
        """Which samples are in which batch."""
        spec = self.spec
        return BatchOrder(len(self.data.train_inputs), spec.dataset_copies, spec.samples_per_step, spec.seed)

    @cached_property
    def model(self) -> Model:
        """What to train."""
        if self.own is not None:
            return Model(own=self.own)
        found, shape = workload(self.spec.workload), self.data.input_shape
        return Model(found.layers(found.complete_options(self.spec.options), shape, self.data.classes or 0))

    def starting_weights(self) -> Weights:
        """Of built-in layers, from the run's seed; made anew each time, so that no process holds them twice."""
        return initial_weights(self.model.layers, self.data.input_shape, self.spec.seed)


def data_request(spec: RunSpec) -> DataRequest:
    """What the run asks of its data source."""
    return DataRequest(spec.seed, spec.train_samples, spec.input_shape, spec.classes)


def spec_layers(spec: RunSpec) -> tuple[Layers, Shape]:
    """The layers of a built-in model as this run trains it, and the shape of a sample."""
    found, source = workload(spec.workload), data_source(str(spec.dataset))
    shape, classes = spec.input_shape or source.shape, spec.classes or source.classes
    if shape is None or classes is None:
        data = source.load(data_request(spec.model_copy(update={"train_samples": 1})))
        shape, classes = shape or data.input_shape, classes or data.classes
    return found.layers(found.complete_options(spec.options), shape, classes or 0), shape


@dataclass(frozen=True)
class Evaluation:
    """Sums over the test samples that this process looked at; the parts of all processes add up."""

    samples: int
    loss_sum: float
    # Predictions looked at and right: tokens for language models, None where accuracy has no meaning.
    predictions: int | None
    correct: int | None


class Job(Protocol):
    """One process's part of a training run."""

    # Optimizer steps that one call of `step` may make; above one where a framework runs several per call.
    stride: int

    def clock(self) -> int:
        """Nanoseconds that never go back, the same clock in every process of the run."""

    def align(self) -> None:
        """Waits until every process is here, so that an epoch starts together."""

    def start_epoch(self, epoch: int) -> None:
        """Takes this process's share of the epoch's batches."""

    def step(self, first: int, count: int) -> None:
        """Trains on `count` batches of the epoch from number `first` on; may return before the device is done."""

    def wait(self) -> None:
        """Returns when the device has done all that was asked."""

    def losses(self) -> list[float] | None:
        """The mean loss of this process's share in each step of the epoch, or None if another process has it."""

    def evaluate(self) -> Evaluation | None:
        """The test set, or this process's part of it."""

    def weights(self) -> Weights:
        """The trained weights in the neutral layout (for a user's own model: under its own names)."""

    def details(self) -> dict[str, Any]:
        """What the strategy wants in the record: thread counts, staleness, the like."""

    def close(self) -> None:
        """Leaves nothing behind: groups destroyed, connections closed."""


@runtime_checkable
class Service(Protocol):
    """A process that does not train but serves those that do: a parameter server, a coordinator's helper."""

    def serve(self) -> None:
        """Returns when the workers have said that they are done."""

    def details(self) -> dict[str, Any]:
        """What it wants in the record."""

    def close(self) -> None:
        """Leaves nothing behind."""


def one_process_per_worker(spec: RunSpec) -> tuple[Role, ...]:
    """The usual layout."""
    return (Role("worker", spec.workers),)


def one_replica_per_worker(spec: RunSpec) -> int:
    """The usual meaning of workers: each trains on its own share of the global batch."""
    return spec.workers


def on_one_worker(strategy: str) -> Callable[[RunSpec], RunSpec]:
    """A reference: the same run on one worker of a framework."""
    return lambda spec: spec.model_copy(update={"strategy": strategy, "workers": 1, "knobs": {}})


torch_on_one_worker = on_one_worker("torch-single")


def nothing_more(_spec: RunSpec, _process: Process) -> dict[str, str]:
    """The usual environment of a process."""
    return {}


def on_cores(spec: RunSpec) -> bool:
    """Whether the run is on CPU cores."""
    return spec.device == "cpu"


def step_by_step(spec: RunSpec) -> bool:
    """Whether the host sees the parts of a step; a recorded one is a single call."""
    return "graph" not in spec.execution


@dataclass(frozen=True)
class Strategy:
    """A way to spread training: what it does and what it costs, in one value."""

    name: str
    family: Family
    framework: str | None
    synchronous: bool
    about: str
    use_when: str
    footprint: Callable[[RunSpec, ModelFacts], Footprint]
    open_job: Callable[[Context], Job | Service]
    # Why it cannot run here, beyond what the fields below say, or None.
    check: Callable[[RunSpec, System], str | None] = lambda _spec, _system: None
    knobs: tuple[Knob, ...] = ()
    devices: tuple[Device, ...] = ("cpu", "cuda", "cuda-slice")
    precisions: tuple[Precision, ...] = ("fp32",)
    executions: tuple[Execution, ...] = ("eager",)
    # Packages that it imports beside its framework.
    needs: tuple[str, ...] = ()
    # The kind of own model that it trains, where it is not that of its framework.
    own_models: str | None = None
    # Environment variables that must be set before the framework is imported.
    environment: Callable[[RunSpec, Process], dict[str, str]] = nothing_more
    roles: Callable[[RunSpec], tuple[Role, ...]] = one_process_per_worker
    replicas: Callable[[RunSpec], int] = one_replica_per_worker
    # Whether its workers can share one GPU; otherwise device cuda wants a GPU for each.
    shares_gpu: bool = False
    # The only worker count it can have, where there is just one.
    fixed_workers: int | None = None
    # For a model of the user's that is no plain sequence: the function of its file that says how to cut it.
    cut_by: Literal["stages", "plan"] | None = None
    # How far its losses may stray from those of its reference run on the same global batch, relative.
    tolerance: float = 1e-4
    reference: Callable[[RunSpec], RunSpec] = torch_on_one_worker
    # Fields that its contract test must set, for a reason that its file gives.
    tested_with: Mapping[str, Any] = field(default_factory=dict)
    # For an asynchronous strategy: the training loss that it must be below in the second epoch of mnist-5k.
    must_reach_loss: float | None = None
    # Whether an instrumented run of it notes what happens when.
    traces: Callable[[RunSpec], bool] = step_by_step
    # Recognises the framework's own out-of-memory exceptions.
    is_out_of_memory: Callable[[BaseException], bool] = lambda error: isinstance(error, MemoryError)

    @property
    def trains(self) -> str | None:
        """The kind of own model that it takes: torch, keras or jax; None for any."""
        return self.own_models or ("keras" if self.framework == "tensorflow" else self.framework)

    def knob_values(self, spec: RunSpec) -> dict[str, Scalar]:
        """All knobs, with the run's own values in their place."""
        return {knob.name: spec.knobs.get(knob.name, knob.default) for knob in self.knobs}
