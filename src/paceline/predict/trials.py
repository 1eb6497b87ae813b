"""Runs of small models that calibrating learns from, on one worker and by each kind of strategy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, lcm

from paceline.errors import UserError
from paceline.footprint import ModelFacts
from paceline.plan import complete, refusal, spec_facts
from paceline.predict.measured import MeasuredStep, measured_step
from paceline.record import Record
from paceline.runs.probe import probe
from paceline.spec import RunSpec, Scalar
from paceline.systems.local import System

# One of each kind; others are taken to be like the one whose last word or family they share.
TIMED = ("torch-ddp", "torch-zero", "torch-fsdp", "torch-pipeline", "torch-tensor", "torch-ps-sync")
SPLITTING = ("torch-fsdp", "torch-tensor")
SINGLE = "torch-single"
BATCH, MICROBATCHES = 64, 16
Run = Callable[[RunSpec, int], Record]


@dataclass(frozen=True)
class Trial:
    """A model to run on one worker and by strategies, and for how long."""

    options: dict[str, Scalar]
    workload: str = "mlp"
    batch: int = BATCH
    epochs: int = 8
    steps: int = 8
    # A run that other programs disturbed is made so often at most; the calmest counts.
    tries: int = 2
    by: tuple[str, ...] = TIMED


# In the first only messages count; the second has parameters enough to fill caches and show what each byte takes. One
# more, because what an allocator keeps of a model is chance. Attention asks for more than dense layers of as many
# arrays, which is the more the more a strategy does at every operation.
TRIALS = (
    Trial({"depth": 2, "width": 16}),
    Trial({"depth": 2, "width": 640}),
    Trial({"depth": 4, "width": 400}, epochs=4, tries=1),
    Trial({"depth": 2, "width": 160}, workload="transformer", batch=16, epochs=6, steps=4, tries=1, by=SPLITTING),
)


@dataclass(frozen=True)
class Ran:
    """One configuration, as its calmest run showed it."""

    spec: RunSpec
    step: MeasuredStep
    record: Record


@dataclass(frozen=True)
class Tried:
    """A model as one worker ran it and, right after, each strategy with a worker on every core."""

    trial: Trial
    alone: Ran
    by_strategies: Mapping[str, Ran]

    @cached_property
    def facts(self) -> ModelFacts:
        """Of the model."""
        return spec_facts(self.alone.spec)


def run_trials(system: System, run: Run, say: Callable[[str], None]) -> list[Tried]:
    """All of them, model by model."""
    cores = len(system.cores)
    found = []
    for trial in TRIALS:
        say(f"{SINGLE}: a small {trial.workload} ({', '.join(f'{name} {one}' for name, one in trial.options.items())})")
        alone, others = _calmest(_spec(trial, SINGLE, 1, cores), run, trial.tries), {}
        specs = [_spec(trial, name, cores, cores) for name in trial.by if cores > 1]
        for spec in specs:
            if _runs(spec, system):
                say(f"{spec.strategy}: its own share of a step")
                others[spec.strategy] = _calmest(spec, run, trial.tries)
        found.append(Tried(trial, alone, others))
    return found


def _batch(trial: Trial, cores: int) -> int:
    """At least as many samples as are worth a step, in equal shares and micro-batches for every core."""
    share = lcm(cores, MICROBATCHES)
    return share * ceil(trial.batch / share)


def _runs(spec: RunSpec, system: System) -> bool:
    """Not every strategy divides these models over as many workers as there are cores."""
    try:
        return refusal(spec, system, probe) is None
    except UserError:
        return False


def _spec(trial: Trial, name: str, workers: int, cores: int) -> RunSpec:
    batch = _batch(trial, cores)
    return complete(
        RunSpec(
            workload=trial.workload, options=trial.options, strategy=name, workers=workers, global_batch=batch,
            epochs=trial.epochs, train_samples=batch * trial.steps,
        )
    )  # fmt: skip


def _calmest(spec: RunSpec, run: Run, tries: int) -> Ran:
    best: Ran | None = None
    for turn in range(tries):
        record = run(spec, turn)
        step = measured_step(record)
        assert step is not None
        if best is None or step.cpu_seconds < best.step.cpu_seconds:
            best = Ran(spec, step, record)
        if not step.disturbed:
            break
    assert best is not None
    return best
