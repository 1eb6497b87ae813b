"""What a process of a run is given: its place among the others, where they meet, the model and the data."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

from paceline.costs.footprint import ModelFacts
from paceline.data import DataRequest, DataSet, data_source
from paceline.data.order import BatchOrder
from paceline.data.sources import LoadedData, SourceKind
from paceline.spans import SpanRecorder
from paceline.spec import RunSpec, Scalar
from paceline.workloads import workload
from paceline.workloads.base import Layers, Weights, initial_weights, model_facts
from paceline.workloads.layers import Shape
from paceline.workloads.user_model import USER_DATA, UserModel, load_user_model

# What every process publishes once its report has reached the launcher.
FINISHED = "finished"
POLL_SECONDS = 0.01
# Where processes of one machine reach each other.
LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"


@dataclass(frozen=True)
class Place:
    """Where a process is: its machine's number and name, and where other processes of the run reach it there."""

    machine: int = 0
    # As the fleet calls it; empty for the machine of the launcher.
    name: str = ""
    address: str = LOOPBACK
    # The network interface that has the address, for libraries that are told an interface.
    interface: str = LOOPBACK_INTERFACE
    # Paths of the namespaces that it enters before it opens a socket, in turn; none where it stays in the launcher's.
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Process:
    """One process of a run: its number among all, its role, and where it is."""

    rank: int
    world: int
    role: str
    index: int
    cores: tuple[int, ...]
    # How many workers it drives.
    workers_each: int = 1
    # Where it is, as its launcher decided.
    place: Place = Place()
    # The number of its first device on its machine.
    device: int = 0


class Exchange(Protocol):
    """Where the processes of a run leave short texts for each other, as their launcher provides it."""

    def publish(self, name: str, rank: int, value: str) -> None:
        """Leaves a text of a process for all others."""

    def read(self, name: str, rank: int) -> str | None:
        """The text of that name that a process has published; None before it has."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the processes of a run meet: rank 0's address, and a port that its launcher holds open against others."""

    host: str
    port: int
    listen_fd: int | None = None
    # None for a process that has no others to meet.
    exchange: Exchange | None = None

    def publish(self, name: str, rank: int, value: str = "") -> None:
        """Publishes a text of this process (an empty one as a mere signal) for the other processes to read."""
        assert self.exchange is not None
        self.exchange.publish(name, rank, value)

    def await_values(self, name: str, ranks: Iterable[int], seconds: float) -> list[str]:
        """What these processes published under that name, once all of them have."""
        assert self.exchange is not None
        deadline, values = time.monotonic() + seconds, []
        for rank in ranks:
            while (value := self.exchange.read(name, rank)) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank {rank} did not publish its {name} within {seconds:g} s")
                time.sleep(POLL_SECONDS)
            values.append(value)
        return values


@dataclass(frozen=True)
class Model:
    """What to train: built-in layers, or the model of a user's file."""

    layers: Layers = ()
    user_model: UserModel | None = None


@dataclass(frozen=True)
class Context:
    """All that `open_job` needs to set up one process; model and data are loaded when first asked for."""

    spec: RunSpec
    process: Process
    rendezvous: Rendezvous

    @cached_property
    def recorder(self) -> SpanRecorder | None:
        """Where an instrumented run notes what it does when; None in a timed one."""
        return SpanRecorder() if self.spec.instrumented else None

    @cached_property
    def notes(self) -> dict[str, Any]:
        """Notes made while setting up that go into the record, beside the job's own details."""
        return {}

    @cached_property
    def user_model(self) -> UserModel | None:
        """The user's model file, run once."""
        return load_user_model(self.spec.model) if self.spec.model is not None else None

    @property
    def model_label(self) -> str:
        """What messages call the model: the user's file and function, or the built-in workload."""
        return self.user_model.label if self.user_model is not None else self.spec.workload

    @cached_property
    def _data(self) -> DataSet | LoadedData:
        if self.user_model is not None and self.spec.dataset == USER_DATA:
            return self.user_model.load_data(self.spec.train_samples)
        return data_source(str(self.spec.dataset)).load(data_request(self.spec))

    @property
    def data(self) -> DataSet:
        """The run's data set; of one that is read while training goes on, a few samples to try a model on."""
        return self._data.trial if isinstance(self._data, LoadedData) else self._data

    @property
    def loaded(self) -> LoadedData | None:
        """The run's data set where it is read while training goes on."""
        return self._data if isinstance(self._data, LoadedData) else None

    @property
    def source_kind(self) -> SourceKind | None:
        """How data came that were read while training went on; None for those in memory, or not loaded here."""
        data = vars(self).get("_data")
        return data.kind if isinstance(data, LoadedData) else None

    @property
    def train_samples(self) -> int | None:
        """Samples of an epoch; None for a stream that does not say."""
        return self._data.train_samples

    def data_digest(self) -> str | None:
        """What tells the run's data from other data; None before they were loaded, and for a stream."""
        return self._data.digest() if "_data" in vars(self) else None

    @cached_property
    def order(self) -> BatchOrder:
        """Which samples are in which batch."""
        spec = self.spec
        samples = stream_length(spec) if self.train_samples is None else self.train_samples
        return BatchOrder(samples, spec.dataset_copies, spec.samples_per_step, spec.seed)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; the data are loaded only where their number decides it."""
        spec = self.spec
        return spec.steps if spec.steps is not None else (spec.epochs or 0) * self.order.steps_per_epoch

    @cached_property
    def model(self) -> Model:
        """What to train."""
        if self.user_model is not None:
            return Model(user_model=self.user_model)
        layers = workload(self.spec.workload).build(self.spec.options, self.data.input_shape, self.data.classes or 0)
        return Model(layers)

    def starting_weights(self) -> Weights:
        """The initial weights of built-in layers, from the run's seed; made at each call, so never held twice."""
        return initial_weights(self.model.layers, self.data.input_shape, self.spec.seed)


def stream_length(spec: RunSpec) -> int:
    """Samples of the only epoch of a stream that does not say how many it has: those of all steps of the run."""
    return spec.samples_per_step * (spec.steps or 1)


def data_request(spec: RunSpec) -> DataRequest:
    """What the run asks of its data source."""
    return DataRequest(spec.seed, spec.train_samples, spec.input_shape, spec.classes)


def spec_layers(spec: RunSpec) -> tuple[Layers, Shape]:
    """The layers of a built-in model as this run trains it, and the shape of a sample."""
    source = data_source(str(spec.dataset))
    shape, classes = spec.input_shape or source.shape, spec.classes or source.classes
    if shape is None or classes is None:
        data = source.load(data_request(_smallest(spec)))
        shape, classes = shape or data.input_shape, classes or data.classes
    return workload(spec.workload).build(spec.options, shape, classes or 0), shape


def _smallest(spec: RunSpec) -> RunSpec:
    """The run with one training sample, of one number where its shape is known: classes do not depend on that."""
    shape = spec.input_shape and tuple(1 for _ in spec.input_shape)
    return spec.model_copy(update={"train_samples": 1, "input_shape": shape})


def spec_classes(spec: RunSpec) -> int | None:
    """The classes of the run's data."""
    source = data_source(str(spec.dataset))
    if spec.classes is not None or source.classes is not None:
        return spec.classes or source.classes
    return source.load(data_request(_smallest(spec))).classes


def spec_facts(spec: RunSpec) -> ModelFacts:
    """Counts of a built-in model as this run trains it."""
    options = tuple(sorted(spec.options.items()))
    return _facts_of(spec.workload, options, str(spec.dataset), spec.input_shape, spec.classes, spec.seed)


# A study over seeds has one of each.
@lru_cache(maxsize=256)
def _facts_of(
    name: str,
    options: tuple[tuple[str, Scalar], ...],
    dataset: str,
    shape: tuple[int, ...] | None,
    classes: int | None,
    seed: int,
) -> ModelFacts:
    """Counts of a built-in model, cached: runs that differ only in how they are spread share them."""
    spec = RunSpec(
        workload=name, options=dict(options), dataset=dataset, input_shape=shape, classes=classes, seed=seed,
        global_batch=1, steps=1,
    )  # fmt: skip
    return model_facts(*spec_layers(spec))
