"""Runs that calibrating learns from, on one worker and by each kind of strategy: of small models, and of the user's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, lcm

from paceline.contract.context import spec_facts
from paceline.costs.footprint import ModelFacts
from paceline.errors import UserError
from paceline.plan import complete, refusal, sample_count
from paceline.predict.measured import MeasuredStep, measured_step
from paceline.record import Record
from paceline.runs.probe import probe
from paceline.spec import BASELINE, RunSpec, Scalar
from paceline.strategies import strategies
from paceline.systems.local import System

BATCH, MICROBATCHES = 64, 16
# The workload that is calibrated with is run by strategies too, unless a step takes so long that this would be most
# of calibrating.
WORKLOAD_EPOCHS, WORKLOAD_STEPS, WORKLOAD_SECONDS, LONGEST_STEP_SECONDS = 3, 10, 0.8, 0.4
Run = Callable[[RunSpec, int], Record]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """A model to run on one worker and by strategies, and for how long."""

    options: dict[str, Scalar]
    workload: str = "mlp"
    batch: int = BATCH
    epochs: int = 8
    steps: int = 8
    # A run that other load disturbed is made so often at most; the least disturbed repeat counts.
    tries: int = 2


# In the first only messages count; the second has parameters enough to fill caches and show what each byte takes. One
# more, because what an allocator keeps of a model is chance. Attention asks for more than dense layers of as many
# arrays, which is the more the more a strategy does at every operation.
TRIALS = (
    Trial({"depth": 2, "width": 16}),
    Trial({"depth": 2, "width": 640}),
    Trial({"depth": 4, "width": 400}, epochs=4, tries=1),
    Trial({"depth": 2, "width": 160}, workload="transformer", batch=16, epochs=6, steps=4, tries=1),
)


def timed_strategies(workload: str | None = None) -> list[str]:
    """Strategies whose software is timed on this workload; traits say which of them others resemble."""
    timed_on = {chosen.name: chosen.traits.timed_on for chosen in strategies().values()}
    return [name for name, timed in timed_on.items() if (workload in timed if workload else timed)]


@dataclass(frozen=True)
class TrialRun:
    """The least disturbed run of one configuration."""

    spec: RunSpec
    step: MeasuredStep
    record: Record


@dataclass(frozen=True)
class TrialModel:
    """A model's runs: on one worker and then by each strategy with a worker on every core."""

    alone: TrialRun
    by_strategies: Mapping[str, TrialRun]
    facts: ModelFacts
    # Whether it is the workload that is calibrated with, so that what one worker holds of it is known already.
    is_workload: bool = False


def trial_runs(system: System, trials: Sequence[Trial] = TRIALS) -> int:
    """How many configurations the trials run."""
    return sum(1 + sum(_can_run(spec, system) for spec in _of_strategies(trial, len(system.cores))) for trial in trials)


def workload_runs(base: RunSpec, system: System) -> int:
    """How many configurations of the workload that is calibrated with are run, if a step of it is not too long."""
    cores = len(system.cores)
    if cores == 1:
        return 0
    spec = base.model_copy(update={"workers": cores, "global_batch": cores, "local_batch": None, "knobs": {}})
    named = (complete(spec.model_copy(update={"strategy": name})) for name in timed_strategies())
    return 1 + sum(_can_run(each, system) for each in named)


def run_trials(system: System, run: Run, say: Say, trials: Sequence[Trial] = TRIALS) -> list[TrialModel]:
    """Runs the trials, model by model."""
    cores = len(system.cores)
    models = []
    for trial in trials:
        options = ", ".join(f"{name} {value}" for name, value in trial.options.items())
        say(f"{BASELINE}: a small {trial.workload} ({options})")
        alone = _least_disturbed(_spec(trial, BASELINE, 1, cores), run, trial.tries)
        specs = _of_strategies(trial, cores)
        models.append(TrialModel(alone, _by_strategies(specs, system, run, say, trial.tries), spec_facts(alone.spec)))
    return models


def run_workload(
    base: RunSpec, facts: ModelFacts, batch: int, step_seconds: float, system: System, run: Run, say: Say
) -> TrialModel | None:
    """Runs the workload that is calibrated with: what strategies hold of it cannot be told from models of its size.

    `batch` is for each worker: many samples, because memory matters where much is held.
    """
    cores = len(system.cores)
    if cores == 1 or step_seconds > LONGEST_STEP_SECONDS:
        return None
    steps = max(1, min(WORKLOAD_STEPS, round(WORKLOAD_SECONDS / WORKLOAD_EPOCHS / step_seconds)))

    def spec_of(name: str, workers: int) -> RunSpec:
        fields = {"strategy": name, "workers": workers, "global_batch": batch * workers, "local_batch": None,
                  "knobs": {}, "epochs": WORKLOAD_EPOCHS, "steps": None}  # fmt: skip
        return complete(with_samples(base.model_copy(update=fields), batch * workers * steps))

    say(f"{BASELINE}: {base.workload}")
    alone = _least_disturbed(spec_of(BASELINE, 1), run, 1)
    others = _by_strategies([spec_of(name, cores) for name in timed_strategies()], system, run, say, 1)
    return TrialModel(alone, others, facts, is_workload=True)


def with_samples(spec: RunSpec, samples: int) -> RunSpec:
    """The run with so many samples in an epoch; the data set is repeated where it is too small."""
    copies = ceil(samples / sample_count(spec.model_copy(update={"train_samples": None}), probe))
    return spec.model_copy(update={"train_samples": ceil(samples / copies), "dataset_copies": copies})


def _by_strategies(specs: Sequence[RunSpec], system: System, run: Run, say: Say, tries: int) -> dict[str, TrialRun]:
    runs = {}
    for spec in specs:
        if _can_run(spec, system):
            say(f"{spec.strategy}: its own share of a step")
            runs[spec.strategy] = _least_disturbed(spec, run, tries)
    return runs


def _of_strategies(trial: Trial, cores: int) -> list[RunSpec]:
    return [_spec(trial, name, cores, cores) for name in timed_strategies(trial.workload) if cores > 1]


def _can_run(spec: RunSpec, system: System) -> bool:
    """Whether the strategy can divide the model over as many workers as there are cores."""
    try:
        return refusal(spec, system, probe) is None
    except UserError:
        return False


def _spec(trial: Trial, name: str, workers: int, cores: int) -> RunSpec:
    # At least as many samples as are worth a step, in equal shares and micro-batches for every core.
    share = lcm(cores, MICROBATCHES)
    batch = share * ceil(trial.batch / share)
    return complete(
        RunSpec(
            workload=trial.workload, options=trial.options, strategy=name, workers=workers, global_batch=batch,
            epochs=trial.epochs, train_samples=batch * trial.steps,
        )
    )  # fmt: skip


def _least_disturbed(spec: RunSpec, run: Run, tries: int) -> TrialRun:
    best: TrialRun | None = None
    for turn in range(tries):
        record = run(spec, turn)
        step = measured_step(record)
        assert step is not None
        if best is None or step.cpu_seconds < best.step.cpu_seconds:
            best = TrialRun(spec, step, record)
        if not step.disturbed:
            break
    assert best is not None
    return best
