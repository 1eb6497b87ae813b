"""Whether a run can fit in this machine's memory at all: what it is sure to hold, and what is free.

Only bytes that must be there at the same time count, and only a part of those that a framework may do without: a run
that is refused would have been ended by the kernel, perhaps with other programs.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

import psutil

from paceline.contract.context import data_request, spec_facts
from paceline.contract.user_model_facts import UserModelFacts
from paceline.costs.footprint import FLOAT_BYTES, RankFootprint
from paceline.data import data_source
from paceline.errors import UserError
from paceline.plan import Plan, PlannedRun
from paceline.refusals import process_count
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import Gpu
from paceline.units import format_bytes
from paceline.workloads.user_model import USER_DATA

Probe = Callable[[RunSpec], UserModelFacts]
# What a process has to itself: an interpreter after a fork, and a framework that has computed something. Assumed, and
# rather too little than too much.
PROCESS_BYTES, FRAMEWORK_BYTES = 4e6, 4e7
# Of the activations that are counted, frameworks keep this much at least at the end of a forward pass.
SURELY_KEPT = 0.5
GIGABYTE = 1e9
CGROUP = Path("/sys/fs/cgroup")


def leave_out_what_cannot_fit(plan: Plan, probe: Probe, free_bytes: float, gpus: Sequence[Gpu] = ()) -> Plan:
    """The plan with runs that cannot fit in so much memory, or in these GPUs, among those that are skipped and why."""
    reasons: dict[str, str | None] = {}
    for run in plan.to_run:
        key = run.spec.key()
        if key not in reasons:
            reasons[key] = _why_it_cannot_fit(run.spec, probe, free_bytes, gpus)
    refused = [run for run in plan.to_run if reasons[run.spec.key()] is not None]
    first = {run.spec.key(): run.spec for run in refused}
    skipped = [PlannedRun(spec, 0, reasons[key]) for key, spec in first.items()]
    left = tuple(run for run in plan.to_run if reasons[run.spec.key()] is None)
    return replace(plan, to_run=left, skipped=(*plan.skipped, *skipped)) if refused else plan


def _why_it_cannot_fit(spec: RunSpec, probe: Probe, free_bytes: float, gpus: Sequence[Gpu]) -> str | None:
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    if largest is not None and (needed := least_gpu_bytes(spec, probe)) > largest.memory_bytes > 0:
        return (
            f"it needs at least {format_bytes(needed)} of a GPU's memory, and {largest.name} has "
            f"{format_bytes(largest.memory_bytes)}; use a smaller batch or model, recomputation, or a strategy that "
            f"shards, or --force to run it all the same"
        )
    needed = least_bytes(spec, probe)
    if needed <= free_bytes:
        return None
    # In whole gigabytes, so that a run which is asked for again is skipped for the same reason.
    free = free_bytes - free_bytes % GIGABYTE if free_bytes > GIGABYTE else free_bytes
    return (
        f"it needs at least {format_bytes(needed)} of memory, and {format_bytes(free)} are free on this machine; "
        f"use fewer workers, a smaller batch or a smaller model, or --force to run it all the same"
    )


def least_bytes(spec: RunSpec, probe: Probe) -> float:
    """Bytes that all processes of a run on cores are sure to hold together; 0 where that is not known."""
    if spec.device != "cpu" or spec.several_machines or spec.script is not None:
        return 0.0
    processes = process_count(spec)
    if strategy(spec.strategy).family == "fake":
        return processes * PROCESS_BYTES
    held = sum(group.ranks * _held(group) for group in _groups(spec, probe))
    return held + processes * (PROCESS_BYTES + FRAMEWORK_BYTES + _data_bytes(spec))


def least_gpu_bytes(spec: RunSpec, probe: Probe) -> float:
    """Bytes that a run is sure to hold in the memory of one GPU, all its slices together; 0 where that is not known."""
    if spec.device == "cpu" or spec.machines or spec.script is not None or spec.offload:
        return 0.0
    held = [(group.ranks, _held(group)) for group in _groups(spec, probe)]
    if spec.device == "cuda-slice":
        return sum(ranks * each for ranks, each in held)
    return max((each for _, each in held), default=0.0)


def _groups(spec: RunSpec, probe: Probe) -> tuple[RankFootprint, ...]:
    """What the processes of a run hold; none where that is not known."""
    with suppress(UserError, ValueError):
        facts = probe(spec).model if spec.model is not None else spec_facts(spec)
        return strategy(spec.strategy).footprint(spec, facts).groups if facts is not None else ()
    return ()


def _held(group: RankFootprint) -> float:
    """At the end of the forward pass, or at that of the backward pass."""
    return (
        group.parameter_bytes + group.optimizer_bytes + max(group.gradient_bytes, SURELY_KEPT * group.activation_bytes)
    )


def _data_bytes(spec: RunSpec) -> float:
    """Training samples as each process holds them, in single precision."""
    if spec.dataset == USER_DATA:
        return 0.0
    source = data_source(str(spec.dataset))
    shape = spec.input_shape or source.shape
    return source.count(data_request(spec)) * prod(shape) * FLOAT_BYTES if shape is not None else 0.0


def free_bytes() -> float:
    """Memory that programs can have on this machine now, or as much as this one's control group leaves."""
    free = float(psutil.virtual_memory().available)
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        used = float((CGROUP / "memory.current").read_text())
        cached = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    return free if most == "max" else min(free, float(most) - used + float(cached.get("inactive_file", 0)))
