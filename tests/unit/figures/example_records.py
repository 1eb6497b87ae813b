"""Synthetic records of the built-in studies, from a simple cost model, so that figures have something to show."""

import math
from collections.abc import Iterable

from paceline.breakdown import RankBreakdown
from paceline.plan import complete
from paceline.record import (
    Energy,
    Epoch,
    Finding,
    GradientNoise,
    Look,
    MemberChange,
    Memory,
    Progress,
    Rank,
    Record,
    Startup,
    Status,
)  # fmt: skip
from paceline.scale import shrink
from paceline.spec import RunSpec
from paceline.study import Study

CORES = 2
OVERSUBSCRIBED = Finding(code="oversubscribed", text="more workers than cores", hint="read with care")
# Samples/s of one worker, and seconds that each step adds with several.
SPEEDS = {"torch-ddp": (8000.0, 0.004), "tf-mirrored": (6500.0, 0.012), "jax-data": (6000.0, 0.02)}
SLOWER = {"mnist-large": 40.0}
# Repeats differ by these factors.
NOISE = (1.0, 1.04, 0.97)


def step_seconds(spec: RunSpec) -> float:
    speed, cost = SPEEDS.get(spec.strategy, (5000.0 + 150 * (sum(map(ord, spec.strategy)) % 20), 0.01))
    heavier = SLOWER.get(spec.workload, float(spec.options.get("width", 512)) / 512 if spec.workload == "mlp" else 1.0)
    alone = spec.samples_per_step * heavier / speed + 0.002
    several = spec.workers > 1
    return alone / min(spec.workers, CORES) + (cost * (1 + heavier / 20) if several else 0.0)


def record(spec: RunSpec, repeat: int = 0, study: str = "example") -> Record:
    """One finished run; the first epoch is slower by half a second."""
    step = step_seconds(spec) * NOISE[repeat % len(NOISE)]
    images = 60_000 if spec.dataset == "mnist" else 5_000
    steps = max(1, (spec.train_samples or images) * spec.dataset_copies // spec.samples_per_step)
    epochs = [_epoch(number, steps, step, spec) for number in range(1, (spec.epochs or 1) + 1)]
    ranks = tuple(_rank(place, spec) for place in range(spec.workers))
    return Record(
        study=study, spec=spec, repeat=repeat, status=Status.OK, started_at=f"2026-01-01T00:00:{repeat:02d}+00:00",
        wall_seconds=sum(epoch.seconds for epoch in epochs) + 2.0, epochs=tuple(epochs), ranks=ranks,
        startup=Startup(launch_seconds=0.1, import_seconds=1.0, build_seconds=0.4, first_step_seconds=0.5),
        losses=tuple(2.3 * 0.97**number for number in range(min(60, steps * len(epochs)))),
        findings=(OVERSUBSCRIBED,) if spec.workers > CORES else (),
        energy=Energy(source="estimated", watts_per_core=6.75), parameters=402_442,
        breakdown=tuple(_breakdown(place, spec, step) for place in range(spec.workers)) if spec.instrumented else (),
        **_members(spec, step), **_looks(spec, step),
        environment={"python": "3.11.7", "cores": [0, 1], "frameworks": {"torch": "2.13.0"}, "cpu": "a processor"},
    )  # fmt: skip


def _members(spec: RunSpec, step: float) -> dict[str, object]:
    """Progress with a standstill of two seconds after each change of members."""
    if spec.membership is None:
        return {}
    changes, progress, seconds, away = [], [], 5.0, False
    steps_of = {change.step: change for change in spec.membership.changes}
    for number in range(1, (spec.steps or 0) + 1):
        if (change := steps_of.get(number)) is not None:
            changes.append(MemberChange(kind=change.kind, step=number, seconds=seconds))
            seconds, away = seconds + 2.0, change.kind == "leave"
        seconds += 2 * step if away else step
        by = (0,) if away else (0, 1)
        progress.append(Progress(seconds=seconds, step=number, samples=256, loss=2.3 * 0.99**number, trained_by=by))
    return {"changes": tuple(changes), "progress": tuple(progress)}


def _looks(spec: RunSpec, step: float) -> dict[str, object]:
    """A target that is reached after the steps of a curve with critical batch 100, soonest at a rate of 0.05."""
    if not spec.has_target:
        return {"steady_step_seconds": step}
    rate = float(spec.knobs.get("lr", spec.optimizer.lr))
    reached = round(40 * (1 + 100 / spec.samples_per_step) * (1 + abs(math.log2(rate / 0.05)) / 4))
    looks = (Look(step=1, test_accuracy=0.1), Look(step=reached, test_accuracy=0.99))
    return {"steady_step_seconds": step, "looks": looks if reached <= (spec.steps or 0) else looks[:1]}


def _noise(number: int, steps: int, spec: RunSpec) -> GradientNoise | None:
    """A noise scale that doubles with each epoch."""
    if not spec.noise_scale:
        return None
    scale = 20.0 * 2**number
    return GradientNoise(
        small_batch=spec.samples_per_step // 2, big_batch=spec.samples_per_step, small_square=2.0, big_square=1.0,
        steps=steps, scale=scale, low=scale / 1.5, high=scale * 1.5,
    )  # fmt: skip


def _epoch(number: int, steps: int, step: float, spec: RunSpec) -> Epoch:
    seconds = steps * step + (0.5 if number == 1 else 0.0)
    learned = 1 - 0.6 * 0.75 ** (number * min(1.0, steps / 4))
    return Epoch(
        number=number, seconds=seconds, steps=steps, samples=steps * spec.samples_per_step,
        cpu_seconds=seconds * min(spec.workers, CORES), train_loss=2.3 * (1.02 - learned), test_loss=1.0,
        test_accuracy=0.97 * learned, evaluation_seconds=0.1, joules=6.75 * seconds * min(spec.workers, CORES),
        noise=_noise(number, steps, spec),
    )  # fmt: skip


def _rank(place: int, spec: RunSpec) -> Rank:
    held = {"parameters": 1_609_768, "optimizer": 3_219_536}
    memory = Memory(
        baseline_bytes=150_000_000, steady_bytes=190_000_000, peak_bytes=205_000_000 + 5_000_000 * place,
        final_bytes=190_000_000,
    )  # fmt: skip
    stale = spec.knobs.get("n_fetch", 1) if spec.strategy == "torch-downpour" else None
    counted = {} if stale is None else {"staleness": {"updates": 9, "mean": stale, "max": stale, "histogram": []}}
    return Rank(rank=place, role="worker", cores=(place,), cpu_seconds=1.0, peak_memory_bytes=400_000_000,
                memory=memory, details={"held_bytes": held, **counted})  # fmt: skip


def _breakdown(place: int, spec: RunSpec, step: float) -> RankBreakdown:
    late = 0.04 * step * (place == 0 and spec.workers > 1)
    exposed = 0.1 * step if spec.workers > 1 else 0.0
    parts = {"input": 0.02 * step, "forward": 0.3 * step, "optimizer": 0.05 * step, "other": 0.02 * step}
    backward = step - sum(parts.values()) - exposed - late
    return RankBreakdown(
        rank=place, step=step, backward=backward, exposed=exposed, waiting=late, communication=2 * exposed,
        overlapped=exposed, sent_bytes=1.6e6, steps=22, step_low=0.97 * step, step_high=1.08 * step, **parts,
    )  # fmt: skip


def records(study: Study, repeats: int = 3, instrumented: bool = False) -> list[Record]:
    """Every run of a study; strategies that need a GPU are left out."""
    specs = [complete(spec) for spec in study.specs() if spec.strategy != "torch-dp"]
    made = [record(spec, repeat, study.name) for repeat in range(repeats) for spec in specs]
    noted = [spec.model_copy(update={"instrumented": True}) for spec in specs] if instrumented else []
    return made + [record(spec, 0, study.name) for spec in noted]


def built_in(name: str, scale: str = "tiny", **options: object) -> list[Record]:
    """A built-in study at a scale."""
    return records(shrink(Study.load(name), scale), **options)  # type: ignore[arg-type]


def of_strategies(names: Iterable[str], **fields: object) -> list[Record]:
    """One worker and two of each strategy on the small CNN."""
    fixed = {"dataset": "mnist-5k", "global_batch": 256, "epochs": 2, **fields}
    return records(Study(fixed=fixed, factors={"strategy": list(names), "workers": [1, 2]}))
