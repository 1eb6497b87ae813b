"""PyTorch's profiler over an instrumented run on a GPU; see `gpu_spans.py` for what becomes of what it saw."""

import json
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.frameworks.gpu_spans import add_kernel_spans
from paceline.spans import SpanRecorder


def profile_gpu(recorder: SpanRecorder) -> None:
    """Starts the profiler now; what it saw goes onto the recorder when all steps are made."""
    running = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True)
    running.start()

    def stop() -> None:
        torch.cuda.synchronize()
        running.stop()
        # The profiler tells wall-clock time, the recorder a clock that never goes back.
        ahead = time.time_ns() - time.perf_counter_ns()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile.json"
            running.export_chrome_trace(str(file))
            seen = json.loads(file.read_text())
        add_kernel_spans(recorder, seen["traceEvents"], int(seen.get("baseTimeNanoseconds", 0)) - ahead)

    recorder.at_end.append(stop)
