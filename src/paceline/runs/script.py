"""Runs a user's script as one process of a run, under the variables that torchrun sets, and notes its steps."""

import os
import runpy
import socket
import sys
from dataclasses import dataclass
from time import perf_counter_ns

from paceline.callbacks.optimizer import observe_optimizers
from paceline.callbacks.steps import ObservedEpoch, start_log
from paceline.contract.context import Context
from paceline.errors import UserError
from paceline.runs.measure import REPORT_NANOSECONDS, Reporter, usage
from paceline.runs.meters.memory import resident
from paceline.runs.wire import EpochResult, Measurements, StepEvent
from paceline.spec import ScriptFile

PORT = "script_port"
PORT_PATIENCE_SECONDS = 60.0
# Details of a process: where its steps were learnt from, what waiting for batches took, and what its optimizer made.
SOURCE, INPUT_SECONDS, OPTIMIZER_STEPS = "steps_from", "input_seconds", "optimizer_steps"


@dataclass(frozen=True)
class ScriptEnd:
    """What a script left: its measurements, and when its first step began."""

    measured: Measurements
    first_step_began: int


def run_script(context: Context, report: Reporter) -> ScriptEnd:
    """Runs the script to its end; an exit code other than 0 and every exception of it are raised."""
    script = context.spec.script
    assert script is not None
    os.environ |= torchrun_variables(context)
    began = perf_counter_ns()
    log = start_log(_Progress(context, report))
    observe_optimizers(log)
    _run(script)
    source, epochs = log.best()
    memory = resident()
    details = {SOURCE: source, OPTIMIZER_STEPS: log.optimizer_steps, **_input_share(epochs)}
    results = [
        EpochResult(
            epoch=number, stamps=epoch.stamps, ended=epoch.stamps[-1], cpu_seconds=epoch.cpu_ended - epoch.cpu_started,
            losses=None, evaluation=None, resident=memory, paused=epoch.paused, samples=epoch.samples,
        )
        for number, epoch in enumerate(epochs)
    ]  # fmt: skip
    first = epochs[0].stamps[0] if epochs else began
    return ScriptEnd(Measurements(epochs=results, resident=memory, details=details, **usage()), first)


def torchrun_variables(context: Context) -> dict[str, str]:
    """What torchrun tells each process, and so what scripts read."""
    process = context.process
    numbers = {
        "RANK": process.rank, "LOCAL_RANK": process.rank, "WORLD_SIZE": process.world,
        "LOCAL_WORLD_SIZE": process.world, "GROUP_RANK": 0, "MASTER_PORT": _meeting_port(context),
    }  # fmt: skip
    return {"MASTER_ADDR": context.rendezvous.host, **{name: str(number) for name, number in numbers.items()}}


def _meeting_port(context: Context) -> int:
    """A free port of rank 0 for the script; that of the launcher is open already, and a script opens one itself."""
    rendezvous, process = context.rendezvous, context.process
    if process.rank == 0:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((rendezvous.host, 0))
            port = int(probe.getsockname()[1])
        rendezvous.publish(PORT, 0, str(port))
        return port
    return int(rendezvous.await_values(PORT, [0], PORT_PATIENCE_SECONDS)[0])


def _run(script: ScriptFile) -> None:
    """As `python script.py arguments` would: with its folder first among those of modules."""
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.path.parent))
    try:
        runpy.run_path(str(script.path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            words = f"with exit code {end.code}" if isinstance(end.code, int) else f"and says: {end.code}"
            raise UserError(f"{script.path.name} ended {words}; paceline show --logs has what it printed") from end


def _input_share(epochs: list[ObservedEpoch]) -> dict[str, float]:
    waited = sum(epoch.input_nanoseconds for epoch in epochs) / 1e9
    return {INPUT_SECONDS: waited} if waited else {}


class _Progress:
    """Reports steps as they come, at most a few each second."""

    def __init__(self, context: Context, report: Reporter) -> None:
        self._report, self._workers = report, context.spec.workers
        self._samples_per_step = context.spec.samples_per_step
        self._next = 0

    def __call__(self, epoch: ObservedEpoch, number: int) -> None:
        now = epoch.stamps[-1] + epoch.paused
        if now < self._next:
            return
        self._next = now + REPORT_NANOSECONDS
        samples = epoch.steps * self._samples_per_step if epoch.samples is None else epoch.samples * self._workers
        rate = (samples or epoch.steps) * 1e9 / max(1, epoch.stamps[-1] - epoch.stamps[0])
        self._report(StepEvent(epoch=number, step=epoch.steps, steps=0, samples_per_second=rate))
