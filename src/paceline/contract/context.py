"""What a process of a run is given: its place among the others, where they meet, the model and the data."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.costs.footprint import ModelFacts
from paceline.data import DataRequest, DataSet, data_source
from paceline.data.order import BatchOrder
from paceline.spans import SpanRecorder
from paceline.spec import RunSpec
from paceline.workloads import workload
from paceline.workloads.base import Layers, Weights, initial_weights, model_facts
from paceline.workloads.layers import Shape
from paceline.workloads.own import OWN_DATA, OwnModel, load_own


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
    def recorder(self) -> SpanRecorder | None:
        """Where an instrumented run notes what it does when; None in a timed one."""
        return SpanRecorder() if self.spec.instrumented else None

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


def spec_facts(spec: RunSpec) -> ModelFacts:
    """Counts of a built-in model as this run trains it."""
    return model_facts(*spec_layers(spec))
