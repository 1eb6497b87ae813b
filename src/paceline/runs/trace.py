"""One training step of a model, followed operation by operation without a GPU, in a process of its own (`tracer.py`).

What a trace depends on is its identity, under which it is kept in memory and on disk.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

import paceline
from paceline.contract.trace import Trace
from paceline.errors import ModelError
from paceline.runs.tracer import trace_steps
from paceline.runs.wire import TraceRequest
from paceline.spec import BASELINE, KEY_LENGTH, RunSpec
from paceline.strategies import strategy
from paceline.systems.gpu_memory import GpuMemory
from paceline.systems.local import framework_version

# What decides a trace, beside the samples of a pass.
_FIELDS = {
    "workload", "model", "options", "dataset", "train_samples", "input_shape", "classes", "seed", "optimizer",
    "recompute", "clip", "precision", "memory_format",
}  # fmt: skip
# Code whose change may change a trace.
_CODE = ("frameworks/torch", "workloads", "data", "costs")
_TRACE = TypeAdapter(Trace | str)
_known: dict[str, Trace | str] = {}


@cache
def can_trace() -> bool:
    """Whether PyTorch is installed."""
    return framework_version("torch") is not None


def traced(spec: RunSpec, samples: int | None = None, gpu: GpuMemory | None = None) -> Trace:
    """The trace of one pass and update of a worker of this run on one GPU, with its own samples or so many.

    Raises `ModelError` with the reason where the model cannot be traced.
    """
    trace = traced_all([one_step(spec, samples)], gpu or GpuMemory())[0]
    if isinstance(trace, str):
        raise ModelError(trace)
    return trace


def one_step(spec: RunSpec, samples: int | None = None) -> RunSpec:
    """A single-GPU run that makes one pass of this run's worker."""
    if samples is None:
        replicas = max(1, strategy(spec.strategy).traits.replicas(spec))
        samples = max(1, spec.samples_per_step // replicas // spec.accumulation)
    kept = {name: getattr(spec, name) for name in _FIELDS}
    return RunSpec(strategy=BASELINE, device="cuda", steps=1, global_batch=samples, **kept)


def traced_all(steps: Sequence[RunSpec], gpu: GpuMemory, keeps_calls: bool = False) -> list[Trace | str]:
    """A trace of each step, or why there is none; all missing ones are made in one process."""
    names = [_identity(step, gpu, keeps_calls) for step in steps]
    for name in names:
        if name not in _known and (trace := _stored(name)) is not None:
            _known[name] = trace
    missing = {name: step for name, step in zip(names, steps, strict=True) if name not in _known}
    if missing:
        request = TraceRequest(specs=tuple(missing.values()), gpu=gpu, keeps_calls=keeps_calls)
        for name, trace in zip(missing, trace_steps(request), strict=True):
            _known[name] = trace
            _store(name, trace)
    return [_known[name] for name in names]


def _identity(step: RunSpec, gpu: GpuMemory, keeps_calls: bool) -> str:
    fields = step.model_dump(mode="json", include={*_FIELDS, "global_batch"})
    if step.model is not None:
        fields["model"] = [step.model.digest, step.model.function]
    behaviour = gpu.model_dump(exclude={"source"})
    text = json.dumps([fields, behaviour, framework_version("torch"), _code_digest(), keeps_calls], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@cache
def _code_digest() -> str:
    digest, package = hashlib.sha256(), Path(paceline.__file__).parent
    for folder in _CODE:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paceline" / "traces"


def _stored(name: str) -> Trace | str | None:
    try:
        return _TRACE.validate_json((_folder() / f"{name}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _store(name: str, trace: Trace | str) -> None:
    """Writes a trace to the cache, if that is writable; reasons are not kept, because they may go away."""
    if isinstance(trace, str):
        return
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        file = _folder() / f"{name}.{os.getpid()}"
        file.write_bytes(_TRACE.dump_json(trace))
        file.rename(_folder() / f"{name}.json")
    except OSError:
        return
