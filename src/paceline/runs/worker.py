"""One process of a run: `python -m paceline.runs.worker FOLDER RANK`. Reads `spec.json`, writes `rank-N.json`.

Imports nothing of the command line, tables, figures or report; the framework comes in only when the strategy needs it.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any

_STARTED = perf_counter_ns()

from paceline.errors import UserError  # noqa: E402 - the clock starts before the imports that it times
from paceline.runs.devices import pin  # noqa: E402
from paceline.spec import RunSpec  # noqa: E402
from paceline.strategies import Strategy, strategy  # noqa: E402
from paceline.strategies.base import Context, Process, Rendezvous  # noqa: E402

PR_SET_PDEATHSIG = 1
CODE_OK, CODE_FAILED = 0, 1


def main(folder: Path, rank: int) -> int:
    """Runs the process's part and leaves its result, good or bad, as a file."""
    orders = json.loads((folder / "spec.json").read_text())
    die_with(orders["launcher_pid"])
    process = Process(**{**orders["processes"][rank], "cores": tuple(orders["processes"][rank]["cores"])})
    pin(process)
    spec = RunSpec.model_validate(orders["spec"])
    listen_fd = orders["listen_fd"] if rank == 0 else None
    meeting = Rendezvous(orders["host"], orders["port"], listen_fd, folder)
    chosen = strategy(spec.strategy)
    try:
        result = _train(chosen, Context(spec, process, meeting), orders)
        code = CODE_OK
    except BaseException as error:
        traceback.print_exc()
        result = {"error": describe(error, chosen), "failed_at": perf_counter_ns()}
        code = CODE_FAILED
    leave_result(folder, rank, {"started": _STARTED, **result})
    return code


def _train(chosen: Strategy, context: Context, orders: dict[str, Any]) -> dict[str, Any]:
    from paceline.runs.measure import train

    if chosen.framework is not None:
        import_module(chosen.framework)
    imported = perf_counter_ns()
    job = chosen.open_job(context)
    opened = perf_counter_ns()
    spec = context.spec
    part = train(job, orders["schedule"], spec.samples_per_step, _reporter(orders["events_fd"], context.process.rank))
    if orders["keep_weights"] and context.process.rank == 0:
        import numpy as np

        np.savez(context.rendezvous.folder / "weights.npz", **job.weights())  # type: ignore[arg-type] # numpy types its keywords as flags
    job.close()
    return {"imported": imported, "opened": opened, **part.to_json()}


def describe(error: BaseException, chosen: Strategy) -> dict[str, Any]:
    """The exception as the launcher needs it: its kind, from its type, and its words."""
    if isinstance(error, UserError):
        kind = "user_error"
    elif chosen.is_out_of_memory(error):
        kind = "out_of_memory"
    else:
        kind = "failed"
    return {"kind": kind, "type": type(error).__name__, "text": str(error).strip()}


def leave_result(folder: Path, rank: int, result: dict[str, Any]) -> None:
    """Writes the file under another name first, so that it is whole or absent."""
    draft = folder / f"rank-{rank}.draft"
    draft.write_text(json.dumps(result))
    draft.replace(folder / f"rank-{rank}.json")


def die_with(launcher_pid: int) -> None:
    """Asks the kernel to kill this process when the launcher dies, whatever way it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        os._exit(CODE_FAILED)


def _reporter(events_fd: int, rank: int) -> Any:
    if rank != 0:
        return lambda **_event: None

    def report(**event: Any) -> None:
        os.write(events_fd, json.dumps(event).encode() + b"\n")

    return report


if __name__ == "__main__":
    exit_code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: interpreter shutdown with native threads alive is where frameworks crash after all work is done.
    os._exit(exit_code)
