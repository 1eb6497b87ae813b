"""One planned run ─► one record. Whatever happens to the processes, a record comes back and nothing is left running."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from paceline.data.order import BatchOrder
from paceline.plan import PlannedRun, parameter_count, sample_count
from paceline.record import Record, Status
from paceline.runs.devices import cores_each, lay_out, oversubscription, process_environment
from paceline.runs.meters.energy import open_meter
from paceline.runs.meters.environment import environment
from paceline.runs.meters.gpus import findings_of, watch_gpus
from paceline.runs.meters.load import LoadMeter
from paceline.runs.outcome import Ending, make_record
from paceline.runs.probe import probe
from paceline.runs.processes import POLL_SECONDS, Group, Prepared, Starter, held_port, run_folder, start_fresh, started
from paceline.runs.slices import mps, slice_environment
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.systems import System

# After one process failed, how long the others may take to say why they failed too.
GRACE_SECONDS = 1.0
# Enough for a steady median; the first few count for nothing.
INSTRUMENTED_STEPS = 25
OnEvent = Callable[[dict[str, Any]], None]


class Reader(Protocol):
    """Something that looks at the machine now and then while a run goes on."""

    def read(self, last: bool = False) -> None:
        """If it is time to, or if it is the last chance."""


def launch(
    run: PlannedRun, study: str, system: System, on_event: OnEvent,
    *, weights_to: Path | None = None, start: Starter = start_fresh,
) -> Record:  # fmt: skip
    """Runs it in processes of its own. `KeyboardInterrupt` ends it as interrupted and is the caller's to act on."""
    spec = run.spec
    roles = strategy(spec.strategy).needs.roles(spec)
    processes = lay_out(roles, system.cores, cores_each(spec, roles, system.cores))
    crowded = oversubscription(roles, system.cores, spec)
    energy, gpus = open_meter(spec), watch_gpus(spec, time.perf_counter_ns)
    readers = [reader for reader in (energy, gpus) if reader is not None]
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    with run_folder() as folder, held_port() as listener, mps(spec) as sliced:
        orders = {
            "spec": spec.model_dump(mode="json"),
            "processes": [asdict(process) for process in processes],
            "host": "127.0.0.1",
            "port": listener.getsockname()[1],
            "keep_weights": weights_to is not None,
            "schedule": schedule(spec),
        }
        (folder / "spec.json").write_text(json.dumps(orders))
        environments = [
            process_environment(spec, process, os.environ) | slice_environment(spec, process, system) | sliced
            for process in processes
        ]
        if isinstance(start, Prepared):
            start.prepare(environments)
        meter = LoadMeter(start.cpu_seconds) if isinstance(start, Prepared) else LoadMeter()
        launched = time.perf_counter_ns()
        with started(folder, environments, listener, start) as group:
            ending = watch(group, spec.timeout_seconds, on_event, readers)
            for reader in readers:
                reader.read(last=True)
        ending = replace(ending.with_parts(folder, group), meter=energy)
        if weights_to is not None and (folder / "weights.npz").exists():
            weights_to.write_bytes((folder / "weights.npz").read_bytes())
    uses = gpus.uses() if gpus is not None else ()
    findings = [finding for finding in (crowded, meter.finding(ending.queued)) if finding is not None]
    record = make_record(
        run, study, processes, ending, launched,
        started_at=started_at, findings=[*findings, *findings_of(uses)], environment=environment(),
    )  # fmt: skip
    return record.model_copy(update={"gpus": uses, "parameters": parameter_count(spec, probe)})


def schedule(spec: RunSpec) -> list[tuple[int, int]]:
    """(Epoch, steps in it) of the run; an instrumented one makes a few steps only."""
    samples = sample_count(spec, probe)
    order = BatchOrder(samples, spec.dataset_copies, spec.samples_per_step, spec.seed)
    if spec.instrumented:
        return list(order.schedule(None, INSTRUMENTED_STEPS))
    return list(order.schedule(spec.epochs, spec.steps))


def watch(group: Group, timeout_seconds: float, on_event: OnEvent, readers: Sequence[Reader] = ()) -> Ending:
    """Until all have ended, one has failed, the time is up, or the user interrupts."""
    deadline, pending = time.monotonic() + timeout_seconds, b""
    try:
        while True:
            pending = _pass_on(pending + group.events(POLL_SECONDS), on_event)
            for reader in readers:
                reader.read()
            codes = group.exit_codes()
            if all(code is not None for code in codes):
                return Ending(codes)
            if any(code for code in codes):
                return _after_failure(group)
            if time.monotonic() > deadline:
                return Ending(codes, verdict=Status.TIMED_OUT, seconds_allowed=timeout_seconds)
    except KeyboardInterrupt:
        return Ending(group.exit_codes(), verdict=Status.INTERRUPTED)


def _after_failure(group: Group) -> Ending:
    until = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < until and any(code is None for code in group.exit_codes()):
        time.sleep(POLL_SECONDS)
    return Ending(group.exit_codes())


def _pass_on(said: bytes, on_event: OnEvent) -> bytes:
    *lines, rest = said.split(b"\n")
    for line in lines:
        on_event(json.loads(line))
    return rest


def skipped_record(run: PlannedRun, study: str) -> Record:
    """The record of a run that cannot be made here."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Record(
        study=study, spec=run.spec, repeat=run.repeat, status=Status.SKIPPED, reason=run.skip_reason,
        started_at=now, wall_seconds=0.0, environment=environment(),
    )  # fmt: skip
