"""Tries the user's model before any run: whether it loads, whether it takes the data, how large it is.

Done once per model in a process of its own, so that the tool itself never imports a framework and a model that
crashes takes nothing with it. `python -m paceline.runs.probe ANSWER` is that process: a run's spec in, facts or a
complaint out, as JSON in the file ANSWER.
"""

import contextlib
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from paceline.contract.context import Context, Process, Rendezvous
from paceline.contract.user_model_facts import MODEL_KINDS, UserModelFacts
from paceline.data.sources import StreamSource
from paceline.data.tree import named_leaves
from paceline.errors import ModelError, UserError
from paceline.runs.processes import die_with, read_answer, write_answer
from paceline.runs.wire import ProbeReply
from paceline.spec import KEY_LENGTH, RunSpec
from paceline.workloads.user_model import UserModel, build_user_model, call_user_code

PATIENCE_SECONDS = 300.0
ENOUGH_SAMPLES = 512
_facts_by_model: dict[str, UserModelFacts] = {}


def probe(spec: RunSpec) -> UserModelFacts:
    """Facts about the run's model; raises `ModelError` with what is wrong and where."""
    fields = ("model", "dataset", "input_shape", "classes", "train_samples", "seed", "memory_format")
    # What the probe itself found out is no part of its question.
    identity = json.dumps(spec.without_structure().model_dump(mode="json", include=set(fields)), sort_keys=True)
    if identity not in _facts_by_model:
        _facts_by_model[identity] = _probe_in_new_process(spec)
    return _facts_by_model[identity]


def _probe_in_new_process(spec: RunSpec) -> UserModelFacts:
    assert spec.model is not None
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as folder:
        code, reply, last_line = _ask(spec, Path(folder))
    if reply is None:
        if code < 0 and _builds_otherwise(spec):
            raise ModelError(
                f"{spec.model.label} makes its framework crash (signal {-code}) when images are "
                f"channels-last, and not otherwise; use memory_format contiguous (--memory-format of paceline run)"
            )
        last_words = f": {last_line}" if last_line else ""
        raise ModelError(
            f"{spec.model.label} ended its process (exit code {code}){last_words}; "
            f"try it by itself: python {spec.model.path.name}"
        )
    if reply.facts is None:
        raise ModelError(str(reply.error))
    return reply.facts


def _ask(spec: RunSpec, folder: Path) -> tuple[int, ProbeReply | None, str]:
    """The exit code of the process, its reply, and the last line that it wrote to standard error.

    Only the process itself is waited for. What it started is ended with it.
    """
    assert spec.model is not None
    answer = folder / "answer"
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paceline.runs.probe", str(answer)],
            stdin=subprocess.PIPE, stdout=output, stderr=errors, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as question:
            question.write(f"{os.getpid()}\n{spec.model_dump_json()}".encode())
        code = process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{spec.model.label} did not build within {PATIENCE_SECONDS:g} s; make it build faster"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = read_answer(answer)
    try:
        reply = None if text is None else ProbeReply.model_validate_json(text)
    except ValidationError:
        reply = None
    return code, reply, (folder / "errors").read_text(errors="replace").strip().rpartition("\n")[2]


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
    built = _build(context.user_model)
    for framework, (is_instance, module, function) in KINDS.items():
        if is_instance(built):
            inspect = getattr(import_module(f"paceline.frameworks.{module}"), function)
            facts: UserModelFacts = call_user_code(f"trying {context.model_label}", inspect, context, built)
            assert facts.framework == framework
            describe = import_module(f"paceline.frameworks.{module}").describe_structure
            structure = _digest([describe(built), describe_data(context)])
            return replace(facts, train_samples=context.train_samples, structure=structure, **_source_facts(context))
    *others, last = MODEL_KINDS.values()
    kinds = f"{', '.join(others)} or {last}"
    raise ModelError(f"{context.model_label} returned {type(built).__name__}, not {kinds}; {_what_to_return(built)}")


def _build(user_model: UserModel) -> Any:
    """The model; where its file has imported PyTorch, without its numbers if it has very many."""
    if "torch" not in sys.modules:
        return build_user_model(user_model)
    from paceline.frameworks.torch.outline import build_or_outline

    return build_or_outline(user_model)


def _what_to_return(built: Any) -> str:
    """What to do about a model of no known kind."""
    if isinstance(built, type):
        return f"return an instance of {built.__name__}"
    if any(kind.__module__.partition(".")[0] == "flax" for kind in type(built).__mro__):
        return "return the module of Flax itself, NNX or Linen"
    return "return the model itself"


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


def _is_jax_model(built: Any) -> bool:
    modules = (_is_instance_of(f"flax.{kind}", "Module") for kind in ("nnx", "linen"))
    return _is_pair_of_functions(built) or any(is_instance(built) for is_instance in modules)


# For each kind of model: how it is recognised, and the function that looks at it.
KINDS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "torch": (_is_instance_of("torch.nn", "Module"), "torch.probe", "inspect_torch"),
    "keras": (_is_instance_of("keras", "Model"), "keras.probe", "inspect_keras"),
    "jax": (_is_jax_model, "jax.probe", "inspect_jax"),
}


def describe_data(context: Context) -> list[str]:
    """Shapes and types of what the model trains on; what is random in it is not the same twice."""
    data = context.data
    trees = (data.train_inputs, data.train_targets, data.test_inputs, data.test_targets)
    arrays = [(name, array) for tree in trees for name, array in named_leaves(tree)]
    return [f"{name} {array.dtype} {array.shape}" for name, array in arrays]


def _digest(parts: list[list[str]]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:KEY_LENGTH]


def _leave_memory_to_others() -> None:
    """Has this process fail to get memory before the kernel ends it, or another one, for taking it all."""
    # Drivers of GPUs reserve addresses that are never used.
    if not Path("/dev/nvidiactl").exists():
        limit, most = resource.getrlimit(resource.RLIMIT_DATA)
        known = [number for number in (limit, most) if number != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([psutil.virtual_memory().available, *known]), most))


if __name__ == "__main__":
    try:
        die_with(int(sys.stdin.readline()))
        _leave_memory_to_others()
        reply = ProbeReply(facts=build_and_inspect(RunSpec.model_validate_json(sys.stdin.read())))
    except UserError as complaint:
        reply = ProbeReply(error=str(complaint))
    write_answer(Path(sys.argv[1]), reply.model_dump_json().encode())
    os._exit(0)
