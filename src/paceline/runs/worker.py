"""One process of a run: reads `spec.json`, writes `rank-N.json`.

`python -m paceline.runs.worker FOLDER RANK EVENTS_FD [LISTEN_FD] PARENT_PID` is how the launcher starts it.

Imports nothing of the command line, tables, figures or report; the framework comes in only when the strategy needs it.
"""

import gc
import json
import os
import sys
import traceback
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NoReturn

_STARTED = perf_counter_ns()

from paceline.contract.context import Context, Process, Rendezvous  # noqa: E402
from paceline.contract.job import Service  # noqa: E402
from paceline.errors import UserError  # noqa: E402 - the clock starts before the imports that it times
from paceline.runs.devices import pin  # noqa: E402
from paceline.runs.lifeline import die_with  # noqa: E402
from paceline.runs.measure import Reporter, serve, train, train_instrumented  # noqa: E402
from paceline.runs.meters.memory import resident, start_peak_anew  # noqa: E402
from paceline.runs.meters.run_queue import NANOSECONDS, run_queue_seconds  # noqa: E402
from paceline.spec import RunSpec  # noqa: E402
from paceline.strategies import Strategy, strategy  # noqa: E402

CODE_OK, CODE_FAILED = 0, 1


@dataclass(frozen=True)
class Start:
    """How a process was started: where its orders are, who it is, and what it inherited."""

    folder: Path
    rank: int
    events_fd: int
    listen_fd: int | None
    parent_pid: int
    started: int
    # Where this process was forked from one that had the framework imported: how long that import took.
    imported_before: int = 0


def main(start: Start) -> int:
    """Runs the process's part and leaves its result, good or bad, as a file."""
    die_with(start.parent_pid)
    orders = json.loads((start.folder / "spec.json").read_text())
    process = Process(**{**orders["processes"][start.rank], "cores": tuple(orders["processes"][start.rank]["cores"])})
    pin(process)
    spec = RunSpec.model_validate(orders["spec"])
    meeting = Rendezvous(orders["host"], orders["port"], start.listen_fd, start.folder)
    chosen = strategy(spec.strategy)
    try:
        result = _take_part(chosen, Context(spec, process, meeting), orders, start)
        code = CODE_OK
    except BaseException as error:
        traceback.print_exc()
        result = {"error": describe(error, chosen), "failed_at": perf_counter_ns()}
        code = CODE_FAILED
    leave_result(
        start.folder, start.rank, {"started": start.started, "imported_before": start.imported_before, **result}
    )
    return code


def _take_part(chosen: Strategy, context: Context, orders: dict[str, Any], start: Start) -> dict[str, Any]:
    if chosen.framework is not None:
        import_module(chosen.framework)
    # A framework's own objects stay to the end: looking through them for garbage takes longer than starting a run.
    gc.freeze()
    start_peak_anew()
    baseline, imported = resident(), perf_counter_ns()
    job = chosen.open_job(context)
    start_peak_anew()
    opened = perf_counter_ns()
    reporter, queued = _reporter(start.events_fd, context.process), run_queue_seconds()
    if isinstance(job, Service):
        part = serve(job, context.recorder)
    elif context.recorder is not None:
        part = train_instrumented(job, orders["schedule"], context.spec.samples_per_step, reporter, context.recorder)
    else:
        part = train(job, orders["schedule"], context.spec.samples_per_step, reporter)
        if orders["keep_weights"]:
            _keep_weights(context, job.weights())
    share = (run_queue_seconds() - queued) * NANOSECONDS / max(1, perf_counter_ns() - opened)
    context.notes["run_queue_share"] = share
    job.close()
    held = baseline.own_bytes if baseline else None
    part = replace(part, details={**part.details, **context.notes})
    return {"imported": imported, "opened": opened, "baseline_bytes": held, **part.to_json()}


def _keep_weights(context: Context, weights: dict[str, Any]) -> None:
    """Gathering may need every process; one of them writes."""
    if context.process.index == 0:
        import numpy as np

        np.savez(context.rendezvous.folder / "weights.npz", **weights)


def describe(error: BaseException, chosen: Strategy) -> dict[str, Any]:
    """The exception as the launcher needs it: its kind, from its type, and its words."""
    if isinstance(error, UserError):
        kind = "user_error"
    elif chosen.needs.is_out_of_memory(error):
        kind = "out_of_memory"
    else:
        kind = "failed"
    return {"kind": kind, "type": type(error).__name__, "text": str(error).strip()}


def leave_result(folder: Path, rank: int, result: dict[str, Any]) -> None:
    """Writes the file under another name first, so that it is whole or absent."""
    draft = folder / f"rank-{rank}.draft"
    draft.write_text(json.dumps(result))
    draft.replace(folder / f"rank-{rank}.json")


def _reporter(events_fd: int, process: Process) -> Reporter:
    if process.index != 0:
        return lambda **_event: None

    def report(**event: Any) -> None:
        os.write(events_fd, json.dumps(event).encode() + b"\n")

    return report


def leave(code: int) -> NoReturn:
    """Ends the process. Interpreter shutdown with native threads alive is where frameworks crash after all is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    words = sys.argv[1:]
    inherited_fd = int(words[3]) if len(words) > 4 else None
    leave(main(Start(Path(words[0]), int(words[1]), int(words[2]), inherited_fd, int(words[-1]), _STARTED)))
