"""From how many workers, what batch and what size of model on a strategy paid, by what was measured, in sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.analysis.rows import Row
from paceline.plan import spec_facts
from paceline.spec import RunSpec
from paceline.units import format_count

# A gain below this is called none.
LEAST_GAIN = 1.02


@dataclass(frozen=True)
class Level:
    """One value of a factor: where it stands among the others, and its name."""

    size: float
    name: str


@dataclass(frozen=True)
class Factor:
    """Something that a study may vary. Runs that differ in `fields` alone show what it does."""

    name: str
    fields: frozenset[str]
    level: Callable[[RunSpec], Level]


def _model(spec: RunSpec) -> Level:
    """A built-in model by its parameters; of a user's own only the name is known here."""
    if spec.model is not None:
        return Level(0, spec.model.label)
    parameters = spec_facts(spec).parameters
    return Level(parameters, f"{spec.workload} ({parameters:,} parameters)")


FACTORS = (
    Factor("workers", frozenset({"workers"}), lambda spec: Level(spec.workers, format_count(spec.workers, "worker"))),
    Factor(
        "batch",
        frozenset({"global_batch", "local_batch"}),
        lambda spec: Level(spec.samples_per_step, f"a global batch of {spec.samples_per_step:,}"),
    ),
    Factor("model", frozenset({"workload", "model", "options", "dataset", "train_samples"}), _model),
)


def thresholds(rows: Sequence[Row]) -> list[str]:
    """A sentence for every series of runs in which one factor alone was varied and several workers were used."""
    said = []
    for factor in FACTORS:
        series: dict[str, list[Row]] = {}
        for row in rows:
            if row.speedup is not None and row.spec.workers > 1:
                rest = row.spec.model_dump_json(exclude=set(factor.fields))
                series.setdefault(rest, []).append(row)
        said += [_sentence(factor, own, rows) for own in series.values() if len(_levels(factor, own)) > 1]
    return said


def _levels(factor: Factor, rows: Sequence[Row]) -> list[tuple[Level, float]]:
    found = {factor.level(row.spec): row.speedup or 0.0 for row in rows}
    return sorted(found.items(), key=lambda item: (item[0].size, item[0].name))


def _sentence(factor: Factor, own: Sequence[Row], rows: Sequence[Row]) -> str:
    levels, spec = _levels(factor, own), own[0].spec
    paying = [level.name for level, speedup in levels if speedup >= LEAST_GAIN]
    others = [level.name for level, speedup in levels if speedup < LEAST_GAIN]
    first = next((number for number, (_, speedup) in enumerate(levels) if speedup >= LEAST_GAIN), len(levels))
    rises = all(speedup >= LEAST_GAIN for _, speedup in levels[first:])
    measured = ", ".join(f"{level.name} {speedup:.2f}x" for level, speedup in levels)
    if not paying:
        verdict = "pays at none of what was measured"
    elif not others:
        verdict = "pays throughout"
    elif rises:
        verdict = f"pays from {paying[0]} on"
    else:
        verdict = f"pays with {' and '.join(paying)}, not with {' or '.join(others)}"
    return f"{_name(factor, spec, rows)} {verdict}: {measured} the speed of one worker."


def _name(factor: Factor, spec: RunSpec, rows: Sequence[Row]) -> str:
    """The strategy, with what else tells this series from others."""
    told = []
    if "workers" not in factor.fields:
        told.append(format_count(spec.workers, "worker"))
    if "workload" not in factor.fields and len({row.spec.workload for row in rows}) > 1:
        told.append(spec.workload)
    if "global_batch" not in factor.fields and len({row.spec.samples_per_step for row in rows}) > 1:
        told.append(f"batch {spec.global_batch or spec.local_batch:,}")
    return f"{spec.strategy} ({', '.join(told)})" if told else spec.strategy
