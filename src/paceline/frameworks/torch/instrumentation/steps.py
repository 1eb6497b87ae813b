"""Records what a PyTorch job does: batches read, forward and backward passes, updates; and what a GPU ran.

Modules, optimizer and data are wrapped from outside, so it works for every job and timed runs have none of it.
"""

import json
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from paceline.frameworks.gpu_spans import add_kernel_spans
from paceline.spans import Kind, Span, SpanRecorder


def recorded(recorder: SpanRecorder, kind: Kind, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, recording a span for each call."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with recorder.span(kind):
            return function(*arguments, **named)

    return call


class InstrumentedData:
    """The resident data, recording a span for each batch."""

    def __init__(self, data: Any, recorder: SpanRecorder) -> None:
        self._data = data
        self.batch = recorded(recorder, "input", data.batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)


def record_forward(module: nn.Module, recorder: SpanRecorder) -> None:
    """Records each forward pass of training through the module; with stages, through each of them."""
    running: list[Span] = []

    def before(_module: nn.Module, _inputs: Any) -> None:
        if torch.is_grad_enabled():
            running.append(recorder.add(Span("forward", "forward", perf_counter_ns())))

    def after(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if running:
            running.pop().end = perf_counter_ns()

    for timed in [stage.module for stage in getattr(module, "stages", ())] or [module]:
        timed.register_forward_pre_hook(before)
        timed.register_forward_hook(after)


def record_backward(recorder: SpanRecorder) -> None:
    """Records each backward pass of this process, whoever starts it."""
    torch.autograd.backward = recorded(recorder, "backward", torch.autograd.backward)


def record_updates(optimizer: Any, recorder: SpanRecorder) -> None:
    """Records each optimizer step."""
    if optimizer is not None:
        optimizer.step = recorded(recorder, "optimizer", optimizer.step)


def profile_gpu(recorder: SpanRecorder) -> None:
    """Starts PyTorch's profiler; its events are added to the recorder when all steps are made."""
    running = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True)
    running.start()

    def stop() -> None:
        torch.cuda.synchronize()
        running.stop()
        # The profiler tells wall-clock time, the recorder a clock that never goes back.
        ahead = time_ns() - perf_counter_ns()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile.json"
            running.export_chrome_trace(str(file))
            profile = json.loads(file.read_text())
        add_kernel_spans(recorder, profile["traceEvents"], int(profile.get("baseTimeNanoseconds", 0)) - ahead)

    recorder.at_end.append(stop)
