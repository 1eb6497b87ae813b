"""One process of a run: reads its orders from the run's folder and leaves its report there.

`python -m paceline.runs.worker FOLDER RANK EVENTS_FD [LISTEN_FD] PARENT_PID` starts it afresh; a fork server calls
`run_forked` instead.

Imports nothing of the command line, tables, figures or report; the framework comes in only when the strategy needs it.
"""

import gc
import os
import sys
import traceback
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

_STARTED = perf_counter_ns()

from paceline.runs.processes import CODE_FAILED, CODE_OK, die_with, leave, run_queue_seconds  # noqa: E402

if __name__ == "__main__":
    # Before the imports, which take seconds on a busy machine: a tool that is killed meanwhile must leave nobody alive.
    die_with(int(sys.argv[-1]))

from paceline.contract.context import FINISHED, Context, Process, Rendezvous  # noqa: E402
from paceline.contract.job import Job, Service  # noqa: E402
from paceline.errors import UserError  # noqa: E402 - the clock starts before the imports that it times
from paceline.runs.devices import pin  # noqa: E402
from paceline.runs.elastic.progress import ProgressNotes, first_step  # noqa: E402
from paceline.runs.elastic.training import train_open  # noqa: E402
from paceline.runs.folder import RunFolder  # noqa: E402
from paceline.runs.links.namespaces import enter  # noqa: E402
from paceline.runs.loading import SOURCE  # noqa: E402
from paceline.runs.measure import Reporter, serve, train, train_instrumented  # noqa: E402
from paceline.runs.meters.memory import Resident, resident, start_peak_anew  # noqa: E402
from paceline.runs.pauses.checkpoints import Saver  # noqa: E402
from paceline.runs.pauses.target import TargetEvaluator  # noqa: E402
from paceline.runs.scripts.process import print_failure, run_script  # noqa: E402
from paceline.runs.wire import (  # noqa: E402
    DATA_DIGEST,
    ForkedWorker,
    LossEvent,
    Measurements,
    ProcessStart,
    RankError,
    RankResult,
    TrainingEvent,
    WorkerOrders,
)
from paceline.strategies import Strategy, strategy  # noqa: E402


@dataclass(frozen=True)
class WorkerStart:
    """How a process was started: where its orders are, its rank, and what it inherited."""

    folder: RunFolder
    rank: int
    events_fd: int
    listen_fd: int | None
    started: int
    # Where this process was forked from one that had the framework imported: how long that import took.
    shared_import_nanoseconds: int = 0


def main(start: WorkerStart) -> int:
    """Runs the process's part and leaves its report, good or bad."""
    orders = start.folder.read_orders()
    process = orders.processes[start.rank]
    enter(process.place.namespaces)
    pin(process)
    exchange = replace(start.folder, events_fd=start.events_fd)
    rendezvous = Rendezvous(orders.host, orders.port, start.listen_fd, exchange)
    chosen = strategy(orders.spec.strategy)
    report: RankResult | RankError
    try:
        report = _run_part(chosen, Context(orders.spec, process, rendezvous), orders, start)
        code = CODE_OK
    except BaseException as error:
        if orders.spec.script is None:
            traceback.print_exc()
        else:
            print_failure(error, orders.spec.script)
        report = describe(error, chosen)
        code = CODE_FAILED
    start.folder.write_report(start.rank, report)
    rendezvous.publish(FINISHED, start.rank)
    return code


def run_forked(argument: str, fds: list[int]) -> int:
    """The whole process where a fork server started it."""
    started, worker = perf_counter_ns(), ForkedWorker.model_validate_json(argument)
    listen_fd = fds[1] if len(fds) > 1 else None
    return main(
        WorkerStart(RunFolder(worker.folder), worker.rank, fds[0], listen_fd, started, worker.import_nanoseconds)
    )


def _run_part(chosen: Strategy, context: Context, orders: WorkerOrders, start: WorkerStart) -> RankResult:
    if chosen.framework is not None:
        import_module(chosen.framework)
    # A framework's own objects stay to the end: looking through them for garbage takes longer than starting a run.
    gc.freeze()
    start_peak_anew()
    baseline, imported = resident(), perf_counter_ns()
    if orders.spec.script is not None:
        queued = run_queue_seconds()
        end = run_script(context, _reporter(start.events_fd, context.process))
        waited = (run_queue_seconds() - queued) * 1e9 / max(1, perf_counter_ns() - imported)
        return RankResult(
            start=_process_start(start, imported, end.first_step_began, baseline),
            measured=end.measured, run_queue_share=waited,
        )  # fmt: skip
    job = chosen.open_job(context)
    start_peak_anew()
    opened = perf_counter_ns()
    reporter, queued = _reporter(start.events_fd, context.process), run_queue_seconds()
    samples, measured = orders.spec.samples_per_step, Measurements()
    if isinstance(job, Service):
        measured = serve(job, context.recorder)
    elif context.recorder is not None:
        measured = train_instrumented(job, orders.schedule, samples, reporter, context.recorder)
    elif orders.spec.membership is not None:
        first = first_step(start.folder, start.rank)
        measured = train_open(job, orders.schedule, first, ProgressNotes(start.folder, start.rank))
    else:
        measured = train(job, orders.schedule, samples, reporter, _saver(job, orders), _target_evaluator(job, context))
        if orders.keep_weights:
            _keep_weights(context, job.weights(), start.folder)
    if context.source_kind is not None:
        context.notes[SOURCE] = context.source_kind
    if orders.spec.several_machines and (digest := context.data_digest()) is not None:
        context.notes[DATA_DIGEST] = digest
    waited = (run_queue_seconds() - queued) * 1e9 / max(1, perf_counter_ns() - opened)
    job.close()
    return RankResult(
        start=_process_start(start, imported, opened, baseline),
        measured=measured,
        notes=context.notes,
        run_queue_share=waited,
    )  # fmt: skip


def _process_start(start: WorkerStart, imported: int, opened: int, baseline: Resident | None) -> ProcessStart:
    return ProcessStart(
        started=start.started, imported=imported, opened=opened,
        shared_import_nanoseconds=start.shared_import_nanoseconds,
        baseline_bytes=baseline.current_bytes if baseline else None,
    )  # fmt: skip


def _saver(job: Job, orders: WorkerOrders) -> Saver | None:
    if orders.spec.checkpoint_every is None:
        return None
    assert orders.checkpoints is not None
    return Saver(job, orders.spec.checkpoint_every, orders.checkpoints)


def _target_evaluator(job: Job, context: Context) -> TargetEvaluator | None:
    alone = context.process.world == 1
    return TargetEvaluator(job, context.spec, alone) if context.spec.has_target else None


def _keep_weights(context: Context, weights: dict[str, Any], folder: RunFolder) -> None:
    """Gathering the weights may need every process; the first one writes them."""
    if context.process.index == 0:
        import numpy as np

        np.savez(folder.weights, **weights)


def describe(error: BaseException, chosen: Strategy) -> RankError:
    """The exception as the launcher needs it."""
    kind: Literal["user_error", "out_of_memory", "failed"]
    if isinstance(error, UserError):
        kind = "user_error"
    elif chosen.needs.is_out_of_memory(error):
        kind = "out_of_memory"
    else:
        kind = "failed"
    return RankError(kind=kind, type=type(error).__name__, text=str(error).strip(), failed_at=perf_counter_ns())


def _reporter(events_fd: int, process: Process) -> Reporter:
    """The first process tells how far the run is; losses come from whoever has them, such as the last stage."""

    def report(event: TrainingEvent) -> None:
        if process.index == 0 or isinstance(event, LossEvent):
            os.write(events_fd, event.model_dump_json().encode() + b"\n")

    return report


if __name__ == "__main__":
    words = sys.argv[1:]
    inherited_fd = int(words[3]) if len(words) > 4 else None
    leave(main(WorkerStart(RunFolder(Path(words[0])), int(words[1]), int(words[2]), inherited_fd, _STARTED)))
