"""Tries the user's model before any run: whether it loads, whether it takes the data, how large it is.

Done once per model in a process of its own, so that the tool itself never imports a framework and a model that
crashes takes nothing with it. `python -m paceline.runs.probe` is that process: a run's spec in, facts or a complaint
out, as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.user_model_facts import MODEL_KINDS, UserModelFacts
from paceline.data.sources import StreamSource
from paceline.errors import ModelError, UserError
from paceline.runs.processes import die_with
from paceline.runs.wire import ProbeReply
from paceline.spec import RunSpec
from paceline.workloads.user_model import build_user_model

PATIENCE_SECONDS = 300.0
ENOUGH_SAMPLES = 512
_facts_by_model: dict[str, UserModelFacts] = {}


def probe(spec: RunSpec) -> UserModelFacts:
    """Facts about the run's model; raises `ModelError` with what is wrong and where."""
    fields = ("model", "dataset", "input_shape", "classes", "train_samples", "seed", "memory_format")
    identity = json.dumps(spec.model_dump(mode="json", include=set(fields)), sort_keys=True)
    if identity not in _facts_by_model:
        _facts_by_model[identity] = _probe_in_new_process(spec)
    return _facts_by_model[identity]


def _probe_in_new_process(spec: RunSpec) -> UserModelFacts:
    assert spec.model is not None
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "paceline.runs.probe"],
            input=f"{os.getpid()}\n{spec.model_dump_json()}".encode(),
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{spec.model.label} did not build within {PATIENCE_SECONDS:g} s; make it build faster"
        ) from None
    last = answer.stdout.decode(errors="replace").rstrip().rpartition("\n")[2]
    try:
        reply = ProbeReply.model_validate_json(last)
    except ValidationError:
        if answer.returncode < 0 and _builds_otherwise(spec):
            raise ModelError(
                f"{spec.model.label} makes its framework crash (signal {-answer.returncode}) when images are "
                f"channels-last, and not otherwise; use memory_format contiguous (--memory-format of paceline run)"
            ) from None
        tail = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        last_words = f": {tail}" if tail else ""
        raise ModelError(
            f"{spec.model.label} ended its process (exit code {answer.returncode}){last_words}; "
            f"try it by itself: python {spec.model.path.name}"
        ) from None
    if reply.facts is None:
        raise ModelError(str(reply.error))
    return reply.facts


def _builds_otherwise(spec: RunSpec) -> bool:
    """Whether the model works with channels-first images where it failed with channels-last ones.

    PyTorch 2.13 on CPU ends in the backward pass of a strided 1x1 convolution of three channels-last channels.
    """
    if spec.memory_format != "channels_last":
        return False
    try:
        _probe_in_new_process(spec.model_copy(update={"memory_format": "contiguous"}))
    except ModelError:
        return False
    return True


def build_and_inspect(spec: RunSpec) -> UserModelFacts:
    """Builds the model and sends one small batch through it, in this process."""
    process = Process(0, 1, "worker", 0, tuple(os.sched_getaffinity(0)))
    if spec.dataset == "synthetic":
        # Large images take seconds to make, and a look needs two of them, one of a high class.
        spec = spec.model_copy(update={"train_samples": min(spec.train_samples or ENOUGH_SAMPLES, ENOUGH_SAMPLES)})
    context = Context(spec, process, Rendezvous("127.0.0.1", 0))
    assert context.user_model is not None
    built = build_user_model(context.user_model)
    for framework, (is_instance, module, function) in KINDS.items():
        if is_instance(built):
            inspect = getattr(import_module(f"paceline.frameworks.{module}"), function)
            facts: UserModelFacts = inspect(context, built)
            assert facts.framework == framework
            return replace(facts, train_samples=context.train_samples, **_source_facts(context))
    *others, last = MODEL_KINDS.values()
    kinds = f"{', '.join(others)} or {last}"
    raise ModelError(f"{context.model_label} returned {type(built).__name__}, not {kinds}; return the model itself")


def _source_facts(context: Context) -> dict[str, Any]:
    """How the data come that the model is trained on."""
    loaded = context.loaded
    if loaded is None:
        return {}
    takes = loaded.train.takes if isinstance(loaded.train, StreamSource) else ()
    return {"source": loaded.kind, "stream_takes": tuple(sorted(takes))}


def _is_instance_of(framework: str, name: str) -> Callable[[Any], bool]:
    """Whether an object is of that framework's class; if it is, the user's file has imported the framework."""
    return lambda built: framework in sys.modules and isinstance(built, getattr(sys.modules[framework], name))


def _is_pair_of_functions(built: Any) -> bool:
    return isinstance(built, tuple) and len(built) == 2 and all(map(callable, built))


# For each kind of model: how it is recognised, and the function that looks at it.
KINDS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "torch": (_is_instance_of("torch.nn", "Module"), "torch.probe", "inspect_torch"),
    "keras": (_is_instance_of("keras", "Model"), "keras.probe", "inspect_keras"),
    "jax": (_is_pair_of_functions, "jax.probe", "inspect_jax"),
}


if __name__ == "__main__":
    try:
        die_with(int(sys.stdin.readline()))
        reply = ProbeReply(facts=build_and_inspect(RunSpec.model_validate_json(sys.stdin.read())))
    except UserError as complaint:
        reply = ProbeReply(error=str(complaint))
    print("\n" + reply.model_dump_json(), flush=True)  # noqa: T201 - this is how the answer travels
    os._exit(0)
