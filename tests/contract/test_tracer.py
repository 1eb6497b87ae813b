"""One process imports PyTorch for all traces, and none of them sees what another one left."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from paceline.contract.trace import Trace
from paceline.plan import complete
from paceline.runs.trace import one_step
from paceline.runs.tracer import Tracer, trace_steps
from paceline.runs.wire import TraceRequest
from paceline.spec import RunSpec
from paceline.systems.gpu_memory import GpuMemory


def request(workload: str, samples: int = 2, **options: int) -> TraceRequest:
    step = one_step(complete(RunSpec(workload=workload, options=options, global_batch=samples, steps=1)), samples)
    return TraceRequest(specs=(step,), gpu=GpuMemory())


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    started = Tracer()
    yield started
    started.close()


def test_a_trace_is_the_same_whatever_was_traced_before(tracer: Tracer) -> None:
    wanted = request("llama", depth=6, width=64, heads=4)
    (first,) = tracer.traces(wanted)
    for workload in ("gpt", "mnist-large", "resnet"):
        tracer.traces(request(workload))
    (again,) = tracer.traces(wanted)
    assert isinstance(first, Trace) and first == again
    assert tracer.alive


def test_a_tracer_that_was_killed_says_so_and_can_be_closed(tracer: Tracer) -> None:
    os.kill(tracer._process.pid, signal.SIGKILL)
    (reason,) = tracer.traces(request("mlp"))
    assert isinstance(reason, str) and "ended the process (exit code -9)" in reason
    assert not tracer.alive


def test_a_step_that_takes_too_long_is_given_up(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.runs.tracer.PATIENCE_SECONDS", 0.01)
    (reason,) = tracer.traces(request("mlp"))
    assert isinstance(reason, str) and "could not be followed within 0.01 s" in reason
    assert not tracer.alive


def test_threads_that_ask_at_the_same_time_get_each_its_own_trace() -> None:
    requests = [request("mlp", depth=1, width=16 * number) for number in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        traces = [trace for (trace,) in pool.map(trace_steps, requests)]
    sizes = [trace.memory.parameter_bytes for trace in traces if isinstance(trace, Trace)]
    assert len(sizes) == 4 and sizes == sorted(set(sizes))
