"""Scales: a study made smaller for the machine at hand, with fewer images, epochs or repeats and nothing else changed.

What was shrunk is written into every run (`RunSpec.shrunk`), is part of its identity and stands in every title.
"""

from collections.abc import Collection
from typing import Any

from paceline.data import data_source
from paceline.data.base import DataRequest
from paceline.errors import SpecError, nearest
from paceline.spec import Shrunk
from paceline.study import Budget, Study
from paceline.workloads import workload

# The scale of the study as it is written; every study has it.
FULL = "full"
# What may be made smaller without changing what a run is.
_SHRINKABLE = (
    "dataset",
    "train_samples",
    "dataset_copies",
    "epochs",
    "steps",
    "repeats",
    "budget",
    "global_batch",
    "seed",
)
# Factors of which a scale may have fewer levels.
_LEVELS = {"global_batch": "batches", "seed": "seeds"}


def shrink(study: Study, scale: str, fixed: Collection[str] = ()) -> Study:
    """The study at one of its scales. Fields in `fixed`, which the user set, are not changed."""
    if scale == FULL:
        return study
    changes = {name: value for name, value in _scale_fields(study, scale).items() if name not in fixed}
    repeats, budget = changes.pop("repeats", study.repeats), _smaller_budget(study, changes.pop("budget", None))
    _check_levels(study, scale, changes)
    beside = tuple(_fewer_levels(entry, changes) for entry in study.beside if scale not in study.left_out_of(entry))
    smaller = study.with_fields(changes).model_copy(
        update={"repeats": min(repeats, study.repeats), "budget": budget, "beside": beside}
    )
    changes_text = _describe_changes(study, smaller, changes)
    return smaller.with_fields({"shrunk": Shrunk(scale=scale, changes=changes_text)}) if changes_text else smaller


def _scale_fields(study: Study, scale: str) -> dict[str, Any]:
    if not study.scales:
        raise SpecError(
            f"scale {scale!r} was asked for and study {study.name} has none; add a table [scales.{scale}] to its file "
            f"(docs/studies.md), or leave --scale out"
        )
    if scale not in study.scales:
        raise SpecError(f"study {study.name} has no scale {scale!r}; {nearest(scale, [*study.scales, FULL])}")
    for name in study.scales[scale]:
        if name not in _SHRINKABLE:
            raise SpecError(_not_smaller(study, scale, name))
    return dict(study.scales[scale])


def _not_smaller(study: Study, scale: str, name: str) -> str:
    return (
        f"study {study.name}: scale {scale} changes {name}, and a scale may only make a study smaller; "
        f"use {', '.join(_SHRINKABLE)}"
    )


def _smaller_budget(study: Study, budget: dict[str, int] | None) -> Budget | None:
    return study.budget if budget is None else Budget.parse(budget, f"study {study.name}: budget of a scale")


def _check_levels(study: Study, scale: str, changes: dict[str, Any]) -> None:
    """Refuses levels that the study itself does not have."""
    for name in set(_LEVELS) & set(changes):
        if name not in study.factors:
            raise SpecError(_not_smaller(study, scale, name))
        there = study.factors[name]
        levels = changes[name] if isinstance(changes[name], list) else [changes[name]]
        more = [level for level in levels if level not in there]
        if more:
            raise SpecError(
                f"study {study.name}: scale {scale} has {name} {more[0]}, which the study itself has not; "
                f"a scale has fewer of {', '.join(map(str, there))}"
            )


def _fewer_levels(entry: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """An entry beside the study without the levels that its scale leaves out; one that would lose all keeps them."""
    fewer = {
        name: [level for level in entry[name] if level in changes[name]]
        for name in _LEVELS
        if isinstance(entry.get(name), list) and isinstance(changes.get(name), list)
    }
    return {**entry, **{name: levels for name, levels in fewer.items() if levels}}


def _describe_changes(study: Study, smaller: Study, changes: dict[str, Any]) -> tuple[str, ...]:
    changes_text = []
    before, after = _images(study), _images(smaller)
    if before is None or after is None:
        changes_text += [f"first {changes['train_samples']:,} samples"] if "train_samples" in changes else []
    elif before > after:
        changes_text.append(f"{after:,} of {before:,} images")
    elif before < after:
        raise SpecError(
            f"study {study.name}: its scale has {after:,} images and the study itself {before:,}; a scale has fewer"
        )
    for name in ("epochs", "steps"):
        if name in changes:
            changes_text.append(f"{changes[name]} of {study.fixed.get(name, study.factors.get(name))} {name}")
    if study.budget is not None and smaller.budget is not None and smaller.budget != study.budget:
        changes_text.append(f"{smaller.budget.samples:,} of {study.budget.samples:,} samples a run")
    for name, word in _LEVELS.items():
        if name in changes:
            changes_text.append(f"{len(changes[name])} of {len(study.factors.get(name, [0]))} {word}")
    if len(smaller.beside) < len(study.beside):
        changes_text.append(f"{1 + len(smaller.beside)} of {1 + len(study.beside)} parts")
    if "dataset_copies" in changes:
        left_out = [level for level in _copies(study) if level not in _copies(smaller)]
        changes_text += [f"without {', '.join(f'{level}x' for level in left_out)} data"] if left_out else []
    return tuple(changes_text)


def _copies(study: Study) -> list[Any]:
    copies = study.factors.get("dataset_copies", study.fixed.get("dataset_copies", 1))
    return copies if isinstance(copies, list) else [copies]


def _images(study: Study) -> int | None:
    """Images of one copy of the (first) data set; None for data that a user's file makes."""
    if "model" in study.fixed and "dataset" not in study.fixed:
        return None
    names = study.factors.get("workload", study.fixed.get("workload", "mnist-small"))
    usual = workload(names[0] if isinstance(names, list) else names).dataset
    dataset = study.factors.get("dataset", study.fixed.get("dataset", usual))
    samples = study.fixed.get("train_samples")
    source = data_source(dataset[0] if isinstance(dataset, list) else dataset)
    return source.count(DataRequest(train_samples=samples if isinstance(samples, int) else None))
