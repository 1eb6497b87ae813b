"""One planned run ─► one record. Whatever happens to the processes, a record comes back and nothing is left running."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from paceline.data.order import BatchOrder
from paceline.errors import UserError
from paceline.plan import PlannedRun, parameter_count, sample_count
from paceline.record import Finding, Record, Status
from paceline.runs.devices import oversubscription
from paceline.runs.equality import equality_findings
from paceline.runs.interrupts import heard_interrupts
from paceline.runs.launchers import Launcher, ProcessGroup
from paceline.runs.launchers.local import LocalLauncher
from paceline.runs.meters.environment import environment
from paceline.runs.meters.load import Reading, read_load
from paceline.runs.meters.machine import boot_id
from paceline.runs.outcome import Ending, make_record
from paceline.runs.probe import probe
from paceline.runs.processes import POLL_SECONDS
from paceline.runs.surroundings import (
    Surroundings,
    joined_energy,
    joined_environment,
    joined_gpus,
    machine_findings,
    one_host_finding,
)
from paceline.runs.wire import MachineReport, RunNews, RunOrders
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import System

# After one process failed, how long the others may take to say why they failed too.
GRACE_SECONDS = 1.0
# Enough for a steady median; the first few count for nothing.
INSTRUMENTED_STEPS = 25
OnEvent = Callable[[RunNews], None]
FRESH = LocalLauncher()


def launch(
    run: PlannedRun, study: str, system: System, on_event: OnEvent,
    *, weights_to: Path | None = None, launcher: Launcher = FRESH,
) -> Record:  # fmt: skip
    """Runs it in new processes. Ctrl-C ends it as interrupted; the caller decides what follows from that status."""
    spec = run.spec
    processes = launcher.lay_out(spec, system)
    orders = RunOrders(spec=spec, processes=processes, schedule=schedule(spec), keep_weights=weights_to is not None)
    started_at = timestamp()
    with ExitStack() as stack:
        with heard_interrupts():
            group = stack.enter_context(launcher.open(orders))
        before, launched = read_load(), time.perf_counter_ns()
        codes, verdict = start_and_follow(group, spec.timeout_seconds, on_event)
        group.kill()
        ending = Ending(codes, verdict, spec.timeout_seconds, group.reports(), group.log_tails(), group.troubles())
        if weights_to is not None:
            group.save_weights(weights_to)
        machines, after = group.machines(), read_load()
    surroundings = surroundings_of(spec, system, started_at, launched, machines, ending, (before, after))
    return make_record(run, study, processes, ending, surroundings)


def surroundings_of(
    spec: RunSpec, system: System, started_at: str, launched: int, machines: list[MachineReport], ending: Ending,
    load: tuple[Reading | None, Reading | None] = (None, None),
) -> Surroundings:  # fmt: skip
    """What is known of a run beside what its processes left; `load` is that of the launcher's own host."""
    before, after = load
    fleet = tuple(machine for machine in machines if machine.name)
    launcher_load = (boot_id(), before, after) if fleet and before is not None and after is not None else None
    crowded = oversubscription(strategy(spec.strategy).needs.roles(spec), system.cores, spec)
    return Surroundings(
        started_at, launched, (time.perf_counter_ns() - launched) / 1e9, joined_environment(machines),
        findings=[
            *([crowded] if crowded is not None else []), *one_host_finding(fleet), *_equality_findings(spec),
            *machine_findings(machines, ending.longest_run_queue_share, launcher_load),
        ],
        energy=joined_energy(machines), gpus=joined_gpus(machines), parameters=parameter_count(spec, probe),
        machines=fleet,
    )  # fmt: skip


def _equality_findings(spec: RunSpec) -> list[Finding]:
    with suppress(UserError):
        return equality_findings(spec, probe(spec)) if spec.model is not None else []
    return []


def schedule(spec: RunSpec) -> tuple[tuple[int, int], ...]:
    """The number of each epoch and of the steps in it; an instrumented run makes a few; of a script none is known."""
    if spec.script is not None:
        return ()
    samples = sample_count(spec, probe)
    order = BatchOrder(samples, spec.dataset_copies, spec.samples_per_step, spec.seed)
    if spec.instrumented:
        return tuple(order.schedule(None, INSTRUMENTED_STEPS))
    return tuple(order.schedule(spec.epochs, spec.steps))


def start_and_follow(
    group: ProcessGroup, timeout_seconds: float, on_event: OnEvent
) -> tuple[list[int | None], Status | None]:
    """Starts the processes and follows them; an interrupt at any moment of that ends the run as interrupted."""
    try:
        with heard_interrupts():
            group.start()
            return follow(group, timeout_seconds, on_event)
    except KeyboardInterrupt:
        return group.exit_codes(), Status.INTERRUPTED


def follow(group: ProcessGroup, timeout_seconds: float, on_event: OnEvent) -> tuple[list[int | None], Status | None]:
    """Waits until all processes have ended, one has failed, the time is up, or the user interrupts.

    Gives the exit codes, and the status where it is not for the processes to say.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        while True:
            for event in group.events(POLL_SECONDS):
                on_event(event)
            codes = group.exit_codes()
            if all(code is not None for code in codes):
                return codes, None
            if any(codes) or group.troubles():
                return _codes_after_grace(group), None
            if time.monotonic() > deadline:
                return codes, Status.TIMED_OUT
    except KeyboardInterrupt:
        return group.exit_codes(), Status.INTERRUPTED


def _codes_after_grace(group: ProcessGroup) -> list[int | None]:
    until = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < until and any(code is None for code in group.exit_codes()):
        time.sleep(POLL_SECONDS)
    return group.exit_codes()


def skipped_record(run: PlannedRun, study: str) -> Record:
    """The record of a run that cannot be made here."""
    return Record(
        study=study, spec=run.spec, repeat=run.repeat, status=Status.SKIPPED, reason=run.skip_reason,
        started_at=timestamp(), wall_seconds=0.0, environment=environment(),
    )  # fmt: skip


def timestamp() -> str:
    """The time now, as records have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
