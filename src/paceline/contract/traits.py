"""What a strategy declares for predictions, calibration and recommendations, so that none of them asks for its name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paceline.costs.footprint import Footprint, ModelFacts
from paceline.costs.layout_memory import whole_model_peaks
from paceline.costs.precision import Numbers, autocast_numbers
from paceline.costs.step_memory import StepMemory
from paceline.layout import Layout
from paceline.spec import RunSpec, Scalar

if TYPE_CHECKING:
    # A worker that trains has no use for it, and it takes a while to import.
    from paceline.systems.hardware import Hardware

# What a search for the best setting tries: workers in a group, and parts that a batch is cut into.
GROUP_SIZES = (2, 4, 8, 16)
BATCH_PARTS = (4, 16)

# Values of a knob that are worth trying on so many workers of a system.
Values = Callable[[int, "Hardware"], Iterable[Scalar]]


@dataclass(frozen=True)
class Search:
    """A knob (or field such as `layout`) that matters much, values of it to try, and what to try with each value."""

    knob: str
    values: Values
    then: tuple["Search", ...] = ()

    def settings(self, workers: int, hardware: "Hardware", fixed: Mapping[str, Scalar]) -> Iterable[dict[str, Scalar]]:
        """Knob values to predict with; knobs that the user fixed are left alone."""
        if self.knob in fixed:
            return
        for value in self.values(workers, hardware):
            yield {self.knob: value}
            for search in self.then:
                for further in search.settings(workers, hardware, fixed):
                    yield {self.knob: value, **further}


def batch_parts(_workers: int, _hardware: "Hardware") -> tuple[int, ...]:
    """Numbers of micro-batches to try: a few and many."""
    return BATCH_PARTS


def group_sizes(other_than: int) -> Values:
    """Sizes of equal groups of workers to try; the knob's default is predicted anyway."""
    return lambda workers, _hardware: [
        size for size in GROUP_SIZES if size <= workers and workers % size == 0 and size != other_than
    ]


def group_sizes_within_a_node(other_than: int) -> Values:
    """Sizes of groups that exchange so much that they must be within one node."""
    sizes = group_sizes(other_than)
    return lambda workers, hardware: [
        size for size in sizes(workers, hardware) if isinstance(size, int) and size <= hardware.node_devices
    ]


def one_group_per_node(workers: int, hardware: "Hardware") -> tuple[int, ...]:
    """One group per node, if the workers fill several nodes of GPUs."""
    nodes, rest = divmod(workers, hardware.node_devices)
    return (nodes,) if hardware.kind == "cuda" and nodes > 1 and not rest else ()


def one_replica_per_worker(spec: RunSpec) -> int:
    """The usual meaning of workers: each trains on its own share of the global batch."""
    return spec.workers


def one_replica(_spec: RunSpec) -> int:
    """All workers train on the same samples together."""
    return 1


def always(_spec: RunSpec) -> bool:
    """True for every run."""
    return True


@dataclass(frozen=True)
class Peaks:
    """How the peak of each group of ranks is computed from one traced step of the whole model on one device."""

    of: Callable[[RunSpec, ModelFacts, Footprint, StepMemory], Sequence[float]] = whole_model_peaks
    # Samples of that step, where they are not those of one pass of a worker.
    samples: Callable[[RunSpec], float] | None = None
    # Whether passes compute in parameters that were cast, instead of under autocast.
    casts: bool = False


@dataclass(frozen=True)
class Traits:
    """How a strategy behaves, as far as predictions depend on it."""

    # Copies of the model that share a global batch.
    replicas: Callable[[RunSpec], int] = one_replica_per_worker
    # Parts of a global batch that go through the model by themselves, so that each has batch statistics of its own: a
    # replica's passes, unless it says otherwise.
    batch_parts: Callable[[RunSpec], int] | None = None
    # Whether a worker holds a part of each layer, so that activations are put together within a step.
    splits_layers: Callable[[RunSpec], bool] = lambda _spec: False
    # In what numbers its passes keep their results, and so which operations they ask for.
    numbers: Callable[[RunSpec], Numbers] = autocast_numbers
    peaks: Peaks = Peaks()
    # The algorithm of its collectives: auto, ring or tree.
    collective_algorithm: Callable[[RunSpec], str] = lambda _spec: "auto"
    # Knobs that are worth searching for the best setting.
    searched: tuple[Search, ...] = ()
    # Knobs with which it holds less in steps of several passes, and sends more.
    lighter_with: Mapping[str, Scalar] = field(default_factory=dict)
    # Workloads that `paceline calibrate` runs it on to time its software; none where it is not timed by itself.
    timed_on: tuple[str, ...] = ()
    # Strategies whose timed software stands for its own where that was not timed, the most similar first.
    calibrated_like: tuple[str, ...] = ()
    # Knobs with which its workers compute side by side and never exchange anything, where there are such.
    independent_with: Mapping[str, Scalar] | None = None
    # The layout that it stands for, in the words of composed ones; None where none of them is the same.
    layout: Callable[[RunSpec], Layout | None] = lambda spec: spec.layout
    # Whether its jobs count pretended time, which no machine's clock moves.
    keeps_own_clock: bool = False
    # Who writes a checkpoint: the first worker, each worker its part of everything or of the optimizer's state, or all.
    saved_by: Literal["first", "parts", "optimizer_parts", "all"] = "first"
    # The knob that is its learning rate, where that is not the optimizer's.
    rate_knob: str | None = None
    # Steps of all others that a worker's gradient knows nothing of, in the mean, where its settings decide that and no
    # run has to count them.
    staleness: Callable[[RunSpec], float] | None = None
    # Whether it is its framework's usual way to use several devices, which one worker is weighed against.
    usual_on_several_devices: bool = False


# Of pipelines: how many micro-batches, and the schedule that holds fewer of them at a time.
MICROBATCHES_AND_SCHEDULE = Search(
    "microbatches", batch_parts, then=(Search("schedule", lambda _workers, _hardware: ("1f1b",)),)
)
