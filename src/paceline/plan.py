"""Study and what is already done ─► the runs to make, in fair order, and those to skip, with the reason.

Nothing is started here and no framework is imported.
"""

import random
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paceline.contract.context import data_request, spec_facts, spec_layers, stream_length
from paceline.contract.strategy import never
from paceline.contract.user_model_facts import MODEL_KINDS, UserModelFacts
from paceline.data import data_source
from paceline.errors import SpecError, UserError, nearest
from paceline.layout import Layout
from paceline.refusals import process_count, unchanging, unheeded, unread, unsupported, waits_for_unused
from paceline.source_files import identity
from paceline.spec import DEFAULT_GLOBAL_BATCH, KEY_LENGTH, RunSpec, Scalar
from paceline.strategies import Strategy, strategies, strategy
from paceline.strategies.former import FORMER_KNOBS, by_present_name
from paceline.strategies.unlisted.script import STRATEGY as SCRIPT
from paceline.study import Study
from paceline.systems import System
from paceline.units import format_count
from paceline.workloads import Workload, workload
from paceline.workloads.user_model import ANY_NAME, USER_DATA, declared_functions

DEFAULT_EPOCHS = 2
# A run takes a second at least: these would take more than a day.
MOST_RUNS = 100_000


@dataclass(frozen=True)
class PlannedRun:
    """One run to make, or to skip if there is a reason to."""

    spec: RunSpec
    repeat: int
    skip_reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """The runs of a study on this machine: those to make, those to skip, and how many are done."""

    study: str
    to_run: tuple[PlannedRun, ...]
    skipped: tuple[PlannedRun, ...]
    done: int
    keys: tuple[str, ...]
    # What is run otherwise than it was asked for, in words.
    notes: tuple[str, ...] = ()
    # The newest record of the results file when the plan was made: what is newer, another tool made meanwhile.
    newest_record: int | None = None


Probe = Callable[[RunSpec], UserModelFacts]


def make_plan(study: Study, done: Set[tuple[str, int]], system: System, probe: Probe, breakdown: bool = False) -> Plan:
    """Checks every run of the study and puts those not done yet into an interleaved, seeded random order.

    With `breakdown`, each configuration is run once more at the end, instrumented: apart from the runs that are timed.
    """
    pairs = [(spec, _with_structure(complete(spec), system, probe)) for spec in study.specs()]
    specs = {spec.key(): spec for _, spec in pairs}
    reasons = {key: reason for key, spec in specs.items() if (reason := refusal(spec, system, probe)) is not None}
    timed = [spec for key, spec in specs.items() if key not in reasons]
    instrumented, without_breakdown = _instrumented(timed, system, probe) if breakdown else ({}, [])
    if study.repeats * len(specs) > MOST_RUNS:
        configurations = format_count(len(specs), "configuration")
        raise SpecError(
            f"study {study.name}: {study.repeats:,} repeats of {configurations} are more than {MOST_RUNS:,} runs; "
            f"ask for fewer repeats"
        )
    to_run, finished = [], 0
    for repeat in range(study.repeats):
        round_keys = [key for key in specs if key not in reasons]
        random.Random(f"{study.order_seed} {repeat}").shuffle(round_keys)
        finished += sum((key, repeat) in done for key in round_keys)
        to_run += [PlannedRun(specs[key], repeat) for key in round_keys if (key, repeat) not in done]
    finished += sum((key, 0) in done for key in instrumented)
    to_run += [PlannedRun(spec, 0) for key, spec in instrumented.items() if (key, 0) not in done]
    skipped = tuple(PlannedRun(specs[key], 0, reason) for key, reason in reasons.items())
    notes = dict.fromkeys(
        [
            f"{before.strategy} x{before.workers} is run as {after.spread_over}"
            for before, after in pairs
            if before.strategy != after.strategy
        ]
        + [
            f"{after.spread_over} is one process and is run without a link"
            for before, after in pairs
            if before.link != after.link
        ]
        + [
            assumption
            for before, _ in pairs
            if before.model is None and (assumption := workload(before.workload).assumption(before.options))
        ]
        + without_breakdown
    )
    return Plan(study.name, tuple(to_run), skipped, finished, (*specs, *instrumented), tuple(notes))


def _with_structure(spec: RunSpec, system: System, probe: Probe) -> RunSpec:
    """The run with the structure of a user's model as it is now, where it can be looked at here."""
    chosen = strategy(spec.strategy)
    packages = {name for name in (chosen.framework, *chosen.needs.packages) if name is not None}
    if spec.model is None or chosen.trains is None or not packages <= system.frameworks.keys():
        return spec
    model = spec.model.model_copy(update={"structure": probe(spec).structure})
    return spec.model_copy(update={"model": model})


def _instrumented(specs: list[RunSpec], system: System, probe: Probe) -> tuple[dict[str, RunSpec], list[str]]:
    """Instrumented copies of runs by their keys, and of which runs there can be none, in words."""
    copies = [spec.model_copy(update={"instrumented": True}) for spec in specs]
    reasons = {spec.key(): refusal(spec, system, probe) for spec in copies}
    refused = [
        f"no breakdown of {spec.spread_over}: {reasons[spec.key()]}"
        for spec in copies
        if reasons[spec.key()] is not None
    ]
    return {spec.key(): spec for spec in copies if reasons[spec.key()] is None}, refused


def expand_strategies(names: list[str]) -> list[str]:
    """Patterns such as `torch-*` as the names that match, in the catalogue's order; other names unchanged."""
    from fnmatch import fnmatchcase

    chosen: list[str] = []
    for name in names:
        is_pattern = set("*?[") & set(name)
        matching = [other for other in strategies() if fnmatchcase(other, name)] if is_pattern else [name]
        if not matching:
            raise SpecError(f"no strategy matches {name!r}; {nearest(name, strategies())}")
        chosen += [match for match in matching if match not in chosen]
    return chosen


def missing_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Defaults for the batch and the length of a run where the fields set neither."""
    defaults: dict[str, Any] = {}
    if not {"global_batch", "local_batch"} & fields.keys():
        defaults["global_batch"] = DEFAULT_GLOBAL_BATCH
    if not {"epochs", "steps"} & fields.keys():
        defaults["epochs"] = DEFAULT_EPOCHS
    return defaults


def complete(spec: RunSpec) -> RunSpec:
    """The run by its strategy's present name, with its data set named, knobs and options in canonical form.

    Equal runs then have equal keys.
    """
    if spec.script is not None:
        alone = {} if spec.workers > 1 else {"link": None}
        return spec.model_copy(
            update={"strategy": SCRIPT.name, "workload": spec.script.label, "dataset": USER_DATA, **alone}
        )
    spec = by_present_name(spec)
    chosen = strategy(spec.strategy)
    fields: dict[str, Any] = {"knobs": canonical_knobs(chosen, spec.knobs)}
    if not crosses_links(spec):
        # Runs of one worker are the same over every link.
        fields["link"] = None
    if "layout" in chosen.needs.heeds and spec.layout is None:
        fields["layout"] = Layout(shard=spec.workers)
    if spec.membership is not None and chosen.needs.membership == "members":
        # Those who stay go on with what they have: a checkpoint, which others need, is none of theirs.
        fields |= {"checkpoint_every": None, "checkpoint_to": None}
    if spec.model is not None:
        # A study file may name a model as it was.
        now = spec.model.model_copy(update={"digest": identity(spec.model.path, KEY_LENGTH)})
        fields |= {"workload": spec.model.label, "dataset": _own_dataset(spec), "model": now}
    else:
        model = workload(spec.workload)
        options = model.complete_options(spec.options)
        unlike = {name: value for name, value in options.items() if value != model.options[name]}
        # What would be assumed otherwise is written down even if it is as usual.
        fields["options"] = {**{name: options[name] for name in model.assume(unlike)}, **unlike}
        shaped = spec.input_shape is not None and "synthetic" in model.datasets
        fields["dataset"] = spec.dataset or ("synthetic" if shaped else model.dataset)
        if fields["dataset"] not in model.datasets:
            raise SpecError(
                f"workload {spec.workload} cannot train on {fields['dataset']!r}; "
                f"{nearest(str(fields['dataset']), model.datasets)}"
            )
        fields |= _sample_fields(spec, model, str(fields["dataset"]))
    if fields["dataset"] != USER_DATA:
        _check_shape(spec, str(fields["dataset"]))
    return spec.model_copy(update=fields)


def crosses_links(spec: RunSpec) -> bool:
    """Whether a link between processes could matter: not where one worker is all there is."""
    return spec.workers > 1 or process_count(spec) > 1


def _sample_fields(spec: RunSpec, model: Workload, dataset: str) -> dict[str, Any]:
    """The shape and the class count that the model's options ask for, where neither the run nor the data says."""
    source, sample = data_source(dataset), model.sample(model.settle(model.complete_options(spec.options)))
    return {
        name: value
        for name, value, fixed in zip(("input_shape", "classes"), sample, (source.shape, source.classes), strict=True)
        if value is not None and fixed is None and getattr(spec, name) is None
    }


def _own_dataset(spec: RunSpec) -> str:
    assert spec.model is not None
    declared = declared_functions(spec.model)
    if spec.dataset is not None:
        return spec.dataset
    if spec.input_shape is not None and spec.classes is not None:
        return "synthetic"
    if {"data", ANY_NAME} & declared:
        return USER_DATA
    raise SpecError(
        f"{spec.model.label} says nothing about its data; add a function data() to {spec.model.path.name}, or give "
        f"--dataset, or --input-shape with --classes for synthetic data"
    )


def _check_shape(spec: RunSpec, dataset: str) -> None:
    source = data_source(dataset)
    for name, fixed in (("input_shape", source.shape), ("classes", source.classes)):
        value = getattr(spec, name)
        if value is not None and fixed is not None and value != fixed:
            raise SpecError(f"{name} {value} was asked for, but {dataset} has {fixed}; leave it out or use synthetic")


def canonical_knobs(chosen: Strategy, knobs: dict[str, Scalar]) -> dict[str, Scalar]:
    """The knobs of this strategy that differ from its defaults; a name that no strategy has is refused."""
    declared = {knob.name: knob for knob in chosen.knobs}
    canonical: dict[str, Scalar] = {}
    for name, value in knobs.items():
        if name not in declared:
            everywhere = {knob.name for other in strategies().values() for knob in other.knobs} | FORMER_KNOBS
            if name not in everywhere:
                raise SpecError(f"no strategy has a knob {name!r}; {nearest(name, everywhere)}")
            continue
        canonical[name] = _knob_value(chosen, declared[name].default, declared[name].choices, name, value)
    return {name: value for name, value in sorted(canonical.items()) if value != declared[name].default}


def _knob_value(chosen: Strategy, default: Scalar, choices: tuple[Scalar, ...], name: str, value: Scalar) -> Scalar:
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise SpecError(f"knob {name} of {chosen.name} cannot be {value!r}; give such as {default!r}")
    if choices and value not in choices:
        raise SpecError(f"knob {name} of {chosen.name} cannot be {value!r}; choose from {', '.join(map(str, choices))}")
    return value


def sample_count(spec: RunSpec, probe: Probe) -> int:
    """Training samples of one copy of the data set."""
    if spec.dataset == USER_DATA:
        samples = probe(spec).train_samples
        if samples is None and spec.steps is None:
            raise SpecError(
                f"data() of {spec.workload} gives a stream that does not say how many samples it has, and epochs "
                f"{spec.epochs} were asked for; give --steps in place of --epochs, or --train-samples for an epoch"
            )
        return stream_length(spec) if samples is None else samples
    return data_source(str(spec.dataset)).count(data_request(spec))


def parameter_count(spec: RunSpec, probe: Probe) -> int | None:
    """Parameters of the run's model: counted from its layers, or by the probe of a user's model; None if that fails."""
    if spec.script is not None:
        return None
    with suppress(UserError):
        return probe(spec).parameters if spec.model is not None else spec_facts(spec).parameters
    return None


def refusal(spec: RunSpec, system: System, probe: Probe) -> str | None:
    """Why this run cannot be made on this machine, or None. Input that is wrong everywhere is a `SpecError` instead."""
    chosen = strategy(spec.strategy)
    if spec.script is not None:
        return chosen.needs.check(spec, system) or unsupported(spec, chosen, system)
    if chosen.needs.fixed_workers is not None and spec.workers != chosen.needs.fixed_workers:
        return f"{chosen.name} always has {chosen.needs.fixed_workers} worker; {spec.workers} were asked for"
    packages = [name for name in (chosen.framework, *chosen.needs.packages) if name is not None]
    missing = [name for name in packages if name not in system.frameworks]
    if missing:
        return f"{missing[0]} is not installed; install paceline[{chosen.framework}]"
    _check_batch(spec, chosen, probe)
    if spec.model is not None and chosen.trains not in (None, probe(spec).framework):
        raise SpecError(_wrong_framework(spec, chosen, probe(spec).framework))
    if spec.model is None and (unfit := _unfit(spec, chosen)) is not None:
        return unfit
    reason = (
        _undrawn(spec, probe)
        or _too_many_tensors(spec, chosen, probe)
        or _uncut(spec, chosen, probe)
        or (waits_for_unused(spec, chosen, probe(spec)) if spec.model is not None else None)
        or unheeded(spec, chosen)
        or unchanging(spec, chosen)
        or unread(spec, chosen, probe(spec) if spec.dataset == USER_DATA else None)
    )
    if reason is not None:
        return reason
    # The strategy's own words come first: they say why, where the general ones only say that.
    return chosen.needs.check(spec, system) or unsupported(spec, chosen, system)


def _uncut(spec: RunSpec, chosen: Strategy, probe: Probe) -> str | None:
    """Why a user's model cannot be divided as the strategy does it, in words, or None."""
    if spec.model is None:
        return None
    for function in chosen.needs.cut_by(spec):
        reason = probe(spec).why_not_cut(function)
        if reason is not None:
            return (
                f"{chosen.name} does not know how to cut {spec.model.label}, {reason}; "
                f"add a function {function} to {spec.model.path.name} (docs/workloads.md)"
            )
    return None


def _undrawn(spec: RunSpec, probe: Probe) -> str | None:
    """Why the dropout of a user's model cannot be drawn by sample, in words, or None."""
    if spec.model is None or spec.dropout == "by-worker":
        return None
    facts = probe(spec)
    if facts.draws_by_sample or not facts.draws:
        return None
    return (
        f"{spec.model.label} draws random numbers in ways that do not tell its samples apart, and dropout by-sample "
        f"was asked for; use dropout, or attention with dropout, of PyTorch with samples in the first dimension"
    )


def _too_many_tensors(spec: RunSpec, chosen: Strategy, probe: Probe) -> str | None:
    """Why a strategy that passes one tensor cannot train a user's model with several, in words, or None."""
    if spec.model is None or not chosen.needs.one_tensor(spec) or (form := probe(spec).form) is None:
        return None
    others = [
        other.name
        for other in strategies().values()
        if other.trains == chosen.trains
        and other.family == "data"
        and other.needs.one_tensor is never
        and spec.device in other.needs.devices
    ]
    return (
        f"{chosen.name} passes one tensor through the model, and {spec.model.label} {form}; "
        f"use a strategy that takes such batches ({', '.join(others[:3])})"
    )


def _wrong_framework(spec: RunSpec, chosen: Strategy, framework: str) -> str:
    """The message when a strategy is asked to train another framework's model."""
    assert spec.model is not None
    fitting = [other.name for other in strategies().values() if other.trains == framework and other.name != chosen.name]
    names = ", ".join(fitting[:3])
    return (
        f"{spec.model.label} returns {MODEL_KINDS[framework]}, and {chosen.name} trains "
        f"{MODEL_KINDS[str(chosen.trains)]}; return that from {spec.model.path.name}, or use a strategy for what it "
        f"returns ({names})"
    )


def _unfit(spec: RunSpec, chosen: Strategy) -> str | None:
    """Why a built-in model is none for a strategy: its framework lacks a layer, or it would come apart."""
    model = workload(spec.workload)
    if chosen.trains is not None and chosen.trains not in model.frameworks:
        offered = " and ".join(MODEL_KINDS[name] for name in model.frameworks)
        return f"{spec.workload} can be built as {offered}, and {chosen.name} trains {MODEL_KINDS[chosen.trains]}"
    stages = "stages" in chosen.needs.cut_by(spec) and "layout" not in chosen.needs.heeds
    if stages and any(layer.tied for layer in spec_layers(spec)[0]):
        others = " or ".join(other.name for other in strategies().values() if "layout" in other.needs.heeds)
        off = "false" if isinstance(model.options.get("tied"), bool) else "no"
        untied = f", or --option tied={off}" if "tied" in model.options else ""
        return (
            f"{spec.workload} ties its head to its embedding, and {chosen.name} puts them on different workers; "
            f"use {others}{untied}"
        )
    return None


def _check_batch(spec: RunSpec, chosen: Strategy, probe: Probe) -> None:
    replicas = chosen.traits.replicas(spec)
    if spec.samples_per_step % replicas:
        raise SpecError(
            f"global_batch {spec.samples_per_step} does not divide over {replicas} workers; "
            f"use a multiple of {replicas}"
        )
    samples = sample_count(spec, probe) * spec.dataset_copies
    if samples < spec.samples_per_step:
        raise SpecError(
            f"global_batch {spec.samples_per_step} is larger than the {samples} training samples of {spec.dataset}; "
            f"use a smaller batch or more data (dataset_copies, train_samples)"
        )
