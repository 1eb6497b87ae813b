"""PyTorch's profiler over an instrumented run on a GPU; see `kernels.py` for what becomes of what it saw."""

import json
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.frameworks.kernels import put_on
from paceline.spans import Tape


def profile_gpu(tape: Tape) -> None:
    """Starts the profiler now; what it saw goes onto the tape when all steps are made."""
    running = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True)
    running.start()

    def stop() -> None:
        torch.cuda.synchronize()
        running.stop()
        # The profiler tells wall-clock time, the tape a clock that never goes back.
        ahead = time.time_ns() - time.perf_counter_ns()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile.json"
            running.export_chrome_trace(str(file))
            seen = json.loads(file.read_text())
        put_on(tape, seen["traceEvents"], int(seen.get("baseTimeNanoseconds", 0)) - ahead)

    tape.at_end.append(stop)
