"""Runs a user's script as one process of a run, under the variables that torchrun sets, and notes its steps."""

import atexit
import os
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter_ns

from paceline.callbacks.optimizer import observe_optimizers
from paceline.callbacks.steps import ObservedEpoch, StepLog, start_log
from paceline.contract.context import Context
from paceline.errors import UserError
from paceline.runs.measure import Reporter, usage
from paceline.runs.meters.memory import resident
from paceline.runs.scripts.steps import InstrumentedSteps, ReportedSteps
from paceline.runs.wire import EpochResult, Measurements
from paceline.spec import ScriptFile

PORT = "script_port"
PORT_PATIENCE_SECONDS = 60.0
# Details of a process: where its steps were learnt from, what waiting for batches took, and what its optimizer made.
SOURCE, INPUT_SECONDS, OPTIMIZER_STEPS = "steps_from", "input_seconds", "optimizer_steps"
# What other optimizers made between the steps of the leading one, where it is not a whole number for each.
UNEVEN_STEPS = "steps_of_other_optimizers"
# Steps whose update a `GradScaler` left out, as in runs in fp16.
SKIPPED_STEPS = "skipped_steps"


@dataclass(frozen=True)
class ScriptEnd:
    """What a script left: its measurements, and when its first step began."""

    measured: Measurements
    first_step_began: int


def run_script(context: Context, report: Reporter) -> ScriptEnd:
    """Runs the script to its end; an exit code other than 0 and every exception of it are raised."""
    script = context.spec.script
    assert script is not None
    with _held_port(context) as port:
        os.environ |= torchrun_variables(context, port)
        _draw_anew()
        began = perf_counter_ns()
        reported, instrumented = ReportedSteps(context.spec, report), None
        log = StepLog(on_step=reported)
        if context.recorder is not None:
            instrumented = InstrumentedSteps(context.recorder, reported)
            log = StepLog(on_step=instrumented.on_step, on_batch=instrumented.on_batch)
            _observe_parts(context)
        start_log(log)
        observe_optimizers(log)
        _run(script)
    source, epochs = log.best()
    spans = instrumented.spans(source, script.path.name) if instrumented is not None and source is not None else []
    memory = resident()
    details = {SOURCE: source, OPTIMIZER_STEPS: log.optimizer_steps, **_input_share(epochs), **_uneven(source, log)}
    if log.skipped_steps:
        details[SKIPPED_STEPS] = log.skipped_steps
    results = [
        EpochResult(
            epoch=number, stamps=epoch.stamps, ended=epoch.stamps[-1], cpu_seconds=epoch.cpu_ended - epoch.cpu_started,
            losses=None, evaluation=None, resident=memory, paused=epoch.paused, samples=epoch.samples,
        )
        for number, epoch in enumerate(epochs)
    ]  # fmt: skip
    first = epochs[0].stamps[0] if epochs else began
    return ScriptEnd(Measurements(epochs=results, resident=memory, details=details, spans=spans, **usage()), first)


def torchrun_variables(context: Context, port: int) -> dict[str, str]:
    """What torchrun tells each process, and so what scripts and training libraries read."""
    process = context.process
    numbers = {
        "RANK": process.rank, "LOCAL_RANK": process.rank, "ROLE_RANK": process.rank, "GROUP_RANK": 0,
        "WORLD_SIZE": process.world, "LOCAL_WORLD_SIZE": process.world, "ROLE_WORLD_SIZE": process.world,
        "GROUP_WORLD_SIZE": 1, "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
    }  # fmt: skip
    texts = {
        "MASTER_ADDR": context.rendezvous.host, "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "paceline",
        # There is no agent that keeps a store: rank 0 opens it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip
    return {**texts, **{name: str(number) for name, number in numbers.items()}}


@contextmanager
def _held_port(context: Context) -> Iterator[int]:
    """A port of rank 0 that the script opens itself; that of the launcher is open already.

    It stays bound, so that the system gives it to nobody else; who listens there must allow that (`SO_REUSEADDR`), as
    PyTorch, gRPC and every other server of the kind does.
    """
    rendezvous, process = context.rendezvous, context.process
    if process.rank:
        yield int(rendezvous.await_values(PORT, [0], PORT_PATIENCE_SECONDS)[0])
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((rendezvous.host, 0))
        port = int(holder.getsockname()[1])
        rendezvous.publish(PORT, 0, str(port))
        yield port


def _draw_anew() -> None:
    """Seeds NumPy's generator: forked processes have it as their server had, and would all draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _observe_parts(context: Context) -> None:
    """Wraps what the script will call of PyTorch."""
    observing = import_module("paceline.frameworks.torch.instrumentation.scripts")
    observing.observe_script(context.recorder, on_gpu=context.spec.device != "cpu")


def _run(script: ScriptFile) -> None:
    """Runs it as `python script.py arguments` would: in the user's folder, its own first among those of modules."""
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.path.parent))
    try:
        runpy.run_path(str(script.path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            words = f"with exit code {end.code}" if isinstance(end.code, int) else f"and says: {end.code}"
            raise UserError(f"{script.path.name} ended {words}; paceline show --logs has what it printed") from end
    # As the interpreter does at its end, which a worker leaves out.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def print_failure(error: BaseException, script: ScriptFile) -> None:
    """Prints what ended a script as Python would, from the script's own lines on; what it said itself is there."""
    if isinstance(error, UserError):
        return
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script.path):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames or error.__traceback__)


def _uneven(source: str | None, log: StepLog) -> dict[str, int]:
    """How often other optimizers stepped, if they did and not evenly: what a step is, is then open."""
    lacking = log.followed_steps % max(1, log.optimizer_steps)
    # An optimizer that takes the place of another, and turns that are cut off, are no uneven turns.
    uneven = min(lacking, log.optimizer_steps - lacking) > 2
    return {UNEVEN_STEPS: log.followed_steps} if source == "optimizer" and uneven else {}


def _input_share(epochs: list[ObservedEpoch]) -> dict[str, float]:
    waited = sum(epoch.input_nanoseconds for epoch in epochs) / 1e9
    return {INPUT_SECONDS: waited} if waited else {}
