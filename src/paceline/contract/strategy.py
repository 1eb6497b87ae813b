"""The declaration of a strategy, a value without a framework: what it is, needs and costs, and how it is tested.

`runs/measure.py` drives every strategy through `Job` alone, so a new strategy is one new file in `strategies/`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.contract.context import Context, Process
from paceline.contract.job import Job, Service
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.data.sources import SourceKind
from paceline.spec import BASELINE, Device, Execution, Precision, RunSpec, Scalar
from paceline.systems import System

Family = Literal["single", "data", "model", "server", "hybrid", "fake", "script"]


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


def one_process_per_worker(spec: RunSpec) -> tuple[Role, ...]:
    """One process for each worker, the usual arrangement."""
    return (Role("worker", spec.workers),)


def one_process_for_all_workers(spec: RunSpec) -> tuple[Role, ...]:
    """One process that drives every device."""
    return (Role("worker", 1, workers_each=spec.workers),)


def on_one_worker(strategy: str) -> Callable[[RunSpec], RunSpec]:
    """The reference run: the same run on one worker of the same framework."""
    alone = {"strategy": strategy, "workers": 1, "knobs": {}, "layout": None, "accumulation": 1, "recompute": "none",
             "reduction": None, "offload": False, "noise_scale": False}  # fmt: skip
    return lambda spec: spec.model_copy(update=alone)


on_baseline = on_one_worker(BASELINE)


def nothing_more(_spec: RunSpec, _process: Process) -> dict[str, str]:
    """No further environment variables for a process."""
    return {}


def on_cores(spec: RunSpec) -> bool:
    """Whether the run is on CPU cores."""
    return spec.device == "cpu"


def step_by_step(spec: RunSpec) -> bool:
    """Whether the host runs the parts of a step one by one; a recorded graph is a single call."""
    return "graph" not in spec.execution


def never(_spec: RunSpec) -> bool:
    """False for every run."""
    return False


Cut = Literal["stages", "plan"]


def always_cut_by(function: Cut) -> Callable[[RunSpec], tuple[Cut, ...]]:
    """For strategies that cut every model in the same way: the user's function that does it."""
    return lambda _spec: (function,)


@dataclass(frozen=True)
class Needs:
    """Where and how a strategy can run: devices, processes, packages, and what it refuses."""

    devices: tuple[Device, ...] = ("cpu", "cuda", "cuda-slice")
    precisions: tuple[Precision, ...] = ("fp32",)
    executions: tuple[Execution, ...] = ("eager",)
    # Fields of a run that it heeds and others refuse: `layout`, `accumulation`, `recompute`, `clip`, `reduction`,
    # `offload`, `noise_scale`, `batch_norm`, `dropout`, `checkpoint_every`.
    heeds: frozenset[str] = frozenset()
    # How data may come to it, and whether processes of its framework's loader can read batches ahead for it.
    reads: frozenset[SourceKind] = frozenset({"arrays"})
    loader_processes: bool = False
    # Why a run of it cannot read data while it trains, beyond their kind, in words, or None.
    why_not_read: Callable[[RunSpec], str | None] = lambda _spec: None
    # Packages that it imports beside its framework.
    packages: tuple[str, ...] = ()
    # The kind of own model that it trains, where it is not that of its framework.
    user_models: str | None = None
    # For a model of the user's that is no plain sequence: the functions of its file that say how a run cuts it.
    cut_by: Callable[[RunSpec], tuple[Cut, ...]] = lambda _spec: ()
    # Whether a run of it passes one tensor through the model, and so takes neither several inputs nor outputs that are
    # no tensor.
    one_tensor: Callable[[RunSpec], bool] = never
    # The only worker count it can have, where there is just one.
    fixed_workers: int | None = None
    # Whether its workers can share one GPU; otherwise device cuda wants a GPU for each.
    shares_gpu: bool = False
    roles: Callable[[RunSpec], tuple[Role, ...]] = one_process_per_worker
    # Environment variables that must be set before the framework is imported.
    environment: Callable[[RunSpec, Process], dict[str, str]] = nothing_more
    # Why it cannot run here, beyond what the other fields say, or None.
    check: Callable[[RunSpec, System], str | None] = lambda _spec, _system: None
    # How workers leave and join a run: one by one, or torchrun's elastic agents start all of them anew; None where they
    # cannot.
    membership: Literal["members", "agents"] | None = None
    # Whether an instrumented run of it records what happens when.
    can_be_instrumented: Callable[[RunSpec], bool] = step_by_step
    # Recognises the framework's own out-of-memory exceptions.
    is_out_of_memory: Callable[[BaseException], bool] = lambda error: isinstance(error, MemoryError)

    @property
    def one_machine(self) -> bool:
        """Whether all its workers are in one process by its nature, and so on one machine."""
        return self.roles is one_process_for_all_workers


@dataclass(frozen=True)
class Testing:
    """What contract tests hold a strategy to."""

    # The run whose losses a synchronous strategy must follow on the same global batch, and how far it may stray.
    reference: Callable[[RunSpec], RunSpec] = on_baseline
    tolerance: float = 1e-4
    # Fields that its contract test must set, for a reason that its file gives.
    fields: Mapping[str, Any] = field(default_factory=dict)
    # For an asynchronous strategy: the training loss that it must be below in the second epoch of mnist-5k.
    must_reach_loss: float | None = None


@dataclass(frozen=True)
class Strategy:
    """A way to spread training: what it is, what it does and costs, what it needs, and how it is tested."""

    name: str
    family: Family
    framework: str | None
    about: str
    use_when: str
    footprint: Callable[[RunSpec, ModelFacts], Footprint]
    open_job: Callable[[Context], Job | Service]
    synchronous: bool = True
    knobs: tuple[Knob, ...] = ()
    needs: Needs = field(default_factory=Needs)
    traits: Traits = field(default_factory=Traits)
    testing: Testing = field(default_factory=Testing)

    @property
    def trains(self) -> str | None:
        """Which framework's models it trains: torch, keras or jax; None for any."""
        return self.needs.user_models or ("keras" if self.framework == "tensorflow" else self.framework)

    def knob_values(self, spec: RunSpec) -> dict[str, Scalar]:
        """All knobs, with the run's own values in their place."""
        return {knob.name: spec.knobs.get(knob.name, knob.default) for knob in self.knobs}

    def knob_below_one(self, spec: RunSpec, *names: str) -> str | None:
        """Why a run is refused whose knobs, which count something, are below one; None if all are fine."""
        values = self.knob_values(spec)
        low = next((name for name in names if int(values[name]) < 1), None)
        return f"knob {low} of {self.name} is {values[low]}; it must be at least 1" if low else None
