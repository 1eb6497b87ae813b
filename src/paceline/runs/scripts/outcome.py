"""What is particular to the record of a script: samples that it counts itself, steps that nobody saw, and pauses."""

import ast
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from paceline.record import STEPS_COUNTED, Finding
from paceline.runs.scripts.process import OPTIMIZER_STEPS, SKIPPED_STEPS, SOURCE, UNEVEN_STEPS
from paceline.runs.wire import EpochResult, RankResult
from paceline.spec import RunSpec
from paceline.strategies.unlisted.script import imported_modules

# A gap this many times as long as the usual step is no step; with a share of the time this large it is worth naming.
PAUSE, PAUSED_SHARE = 10.0, 0.02
# A `GradScaler` begins with a few skipped steps; with a share of all this large they are worth naming.
SKIPPED_SHARE = 0.02
_GUIDE = "(docs/scripts-you-have.md)"
_KERAS = frozenset({"keras", "tensorflow"})
# Functions that start processes of a training.
_STARTERS = frozenset({"spawn", "start_processes", "Process", "notebook_launcher"})


def missing_steps(spec: RunSpec, results: Sequence[RankResult]) -> str | None:
    """Why a script that ended well is a failed run: none of its steps was seen; or None."""
    if spec.script is None or any(result.measured.epochs for result in results):
        return None
    name = spec.script.path.name
    if any(result.measured.details.get(OPTIMIZER_STEPS) for result in results):
        return f"{name} made a single optimizer step, and the time of a step is that between two; have it make more"
    if starts_processes(spec.script.path):
        return (
            f"no step was seen in {name}, which starts processes of its own: they are not observed; leave that to "
            f"--workers N, and take rank and world size from RANK and WORLD_SIZE as under torchrun {_GUIDE}"
        )
    if not _KERAS.isdisjoint(imported_modules(spec.script.path)):
        return (
            f"no step was seen in {name}, and Keras does not show them from outside; add `callbacks="
            f"[paceline.callbacks.keras_callback(batch_size)]` to fit {_GUIDE}"
        )
    return (
        f"no step was seen in {name}: it calls no optimizer of PyTorch; put "
        f"`with paceline.step(samples=...):` around each step, or `for batch in paceline.watch(loader):`, "
        f"or a callback {_GUIDE}"
    )


def starts_processes(path: Path) -> bool:
    """Whether a script calls what starts processes that train; not where it cannot be read."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return False
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in called}
    return not _STARTERS.isdisjoint(names)


def silent_end(spec: RunSpec) -> str:
    """What to do about a script whose process was gone before its steps could be read."""
    if spec.script is None:
        return ""
    return f"; its steps are read when it returns, so {spec.script.path.name} must not leave by os._exit"


def epoch_samples(spec: RunSpec, views: Sequence[EpochResult], steps: int) -> int:
    """Samples of all workers in an epoch: as the script says, else by the run's batch, else its steps.

    Where only some say how many they had, as with Accelerate's trackers, the others are taken to have had as many.
    """
    counted = [view.samples for view in views if view.samples is not None]
    return round(sum(counted) * len(views) / len(counted)) if counted else steps * (spec.samples_per_step or 1)


def script_findings(spec: RunSpec, results: Sequence[RankResult]) -> list[Finding]:
    """What a reader must know beside the numbers of a script."""
    if spec.script is None:
        return []
    trained = [result for result in results if result.measured.epochs]
    views = [view for result in trained for view in result.measured.epochs]
    findings = []
    if not spec.samples_per_step and all(view.samples is None for view in views):
        findings.append(
            Finding(
                code=STEPS_COUNTED,
                text=f"nothing says how many samples a step of {spec.script.path.name} has, so rates are of steps",
                hint="give --global-batch N, or let the script say it: with paceline.step(samples=n)",
            )
        )
    if len(trained) < len(results):
        findings.append(
            Finding(
                code="steps_on_some_ranks",
                text=f"steps were seen on {len(trained)} of {len(results)} processes; samples are those of the former",
                hint="call paceline.step or paceline.watch on every rank, with the samples of that rank",
            )
        )
    silent = sum(all(view.samples is None for view in result.measured.epochs) for result in trained)
    if 0 < silent < len(trained):
        findings.append(
            Finding(
                code="samples_of_some_ranks",
                text=f"{len(trained) - silent} of {len(trained)} processes said how many samples they trained on; the "
                f"others are taken to have had as many",
                hint="with shares of unlike size, call paceline.step or paceline.watch on every rank",
            )
        )
    return [*findings, *_turns(spec.script.path.name, trained), *_skipped(trained), *_pauses(trained)]


def _turns(name: str, results: Sequence[RankResult]) -> list[Finding]:
    """A finding where several optimizers stepped and not equally often, so that a step may be something else."""
    for result in results:
        details = result.measured.details
        if (others := details.get(UNEVEN_STEPS)) is not None:
            text = (
                f"several optimizers took turns in {name}: one of them made {details[OPTIMIZER_STEPS]:,} steps, which "
                f"are counted, the others {others:,}"
            )
            hint = "where a step is something else, put `with paceline.step(samples=n):` around what it is"
            return [Finding(code="several_optimizers", text=text, hint=hint)]
    return []


def _skipped(results: Sequence[RankResult]) -> list[Finding]:
    """A finding where many steps in fp16 updated nothing: they are in the rate and trained nothing."""
    for result in results:
        details = result.measured.details
        skipped, steps = details.get(SKIPPED_STEPS, 0), details.get(OPTIMIZER_STEPS, 0)
        if skipped > SKIPPED_SHARE * steps:
            text = f"a GradScaler skipped the update of {skipped:,} of {steps:,} steps; their samples count"
            hint = "gradients overflow in fp16: begin with a smaller init_scale, or take bf16"
            return [Finding(code="skipped_updates", text=text, hint=hint)]
    return []


def _pauses(results: Sequence[RankResult]) -> list[Finding]:
    """A finding where long gaps between observed steps, such as evaluations, are in the time of training."""
    for result in results:
        # An epoch's first step may compile or start loader processes, and of a single step nothing is usual.
        seconds = [
            (after - before) / 1e9 for view in result.measured.epochs for before, after in pairwise(view.stamps[1:])
        ]
        if not seconds:
            continue
        longest = PAUSE * median(seconds)
        paused = [duration for duration in seconds if duration > longest]
        share = sum(paused) / sum(seconds)
        if share > PAUSED_SHARE:
            source = result.measured.details.get(SOURCE)
            text = f"{len(paused)} of {len(seconds)} steps ({source}) were over {PAUSE:g} times as long as usual"
            what_to_do = (
                "if the script evaluates or saves there, `for batch in paceline.watch(loader):` leaves it out; other "
                "programs that take its cores make such steps too"
                if source in ("step", "optimizer")
                else "batches that come late, saving and other programs make such steps"
            )
            hint = f"they are {share:.0%} of the time; {what_to_do}"
            return [Finding(code="pauses_between_steps", text=text, hint=hint)]
    return []
