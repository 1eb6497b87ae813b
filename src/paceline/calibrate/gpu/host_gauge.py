"""How long a host takes to launch operations: steps of models so small that the GPU waits for the host."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from paceline.calibrate.gpu.messages import HostTiming
from paceline.calibrate.gpu.operations_gauge import Measuring
from paceline.calibrate.gpu.tiny import TINY_MODELS, TinyModel
from paceline.frameworks.torch.evaluation import cross_entropy
from paceline.frameworks.torch.model import build_module
from paceline.frameworks.torch.optimizer import make_optimizer
from paceline.spec import Execution, Optimizer, Precision

SETTLING_STEPS, STEPS, ROUNDS = 8, 20, 3
# Compiling takes long, so that one model stands for all, and there is none where there is less time.
COMPILED_MODEL, COMPILING_SECONDS = "transformer", 7.0
Step = Callable[[], Any]


def host_timings(measuring: Measuring) -> None:
    """Adds the seconds of steps of tiny models: eager in both widths of numbers, as a graph, and compiled."""
    timings: list[HostTiming] = measuring.answer.setdefault("host", [])
    cuda = measuring.device.type == "cuda"
    cases: list[tuple[Execution, Precision]] = [("eager", "tf32"), ("eager", "bf16")]
    cases += [("graph", "bf16"), ("compiled", "bf16")] if cuda else []
    until = measuring.until("host")
    for execution, precision in cases:
        for name, model in TINY_MODELS.items():
            needed = COMPILING_SECONDS if execution == "compiled" else 0.0
            if time.monotonic() + needed > until or (execution == "compiled" and name != COMPILED_MODEL):
                continue
            measuring.tell(f"timing the host: {name}, {execution}, {precision}")
            try:
                seconds = _host_seconds(model, execution, precision, measuring.device)
            except Exception as error:  # a compiler that is not here can fail in any way
                words = str(error).strip().splitlines() or [type(error).__name__]
                measuring.answer.setdefault("failures", {})[f"host: {execution}"] = words[0]
                continue
            timings.append(HostTiming(model=name, execution=execution, precision=precision, seconds=seconds))


def _host_seconds(model: TinyModel, execution: Execution, precision: Precision, device: torch.device) -> float:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    module = build_module(model.layers, model.shape, channels_last=True).to(device)
    step = _step(module, model, execution, precision, device)
    if execution == "graph":
        return _replay_seconds(step)
    for _ in range(SETTLING_STEPS):
        step()
    return min(_seconds(step, device) for _ in range(ROUNDS))


def _step(
    module: nn.Module, model: TinyModel, execution: Execution, precision: Precision, device: torch.device
) -> Step:
    graphed = execution == "graph"
    optimizer = make_optimizer(Optimizer(), module.parameters(), eager=execution == "eager", graphed=graphed)
    called = torch.compile(module) if execution == "compiled" else module
    if model.vocabulary:
        inputs = torch.randint(0, model.vocabulary, (model.samples, *model.shape), device=device)
        targets = torch.randint(0, model.vocabulary, (model.samples, *model.shape), device=device)
    else:
        inputs = torch.randn(model.samples, *model.shape, device=device)
        targets = torch.randint(0, model.classes, (model.samples,), device=device)
    half = precision == "bf16"

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16) if half else nullcontext():
            loss = cross_entropy(called(inputs), targets)
        loss.backward()
        optimizer.step()

    return step


def _seconds(step: Step, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    wait()
    return (time.perf_counter() - started) / STEPS


def _replay_seconds(step: Step) -> float:
    """Host seconds of a step while the device, which would take longer, sleeps."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(SETTLING_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    replay_seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        graph.replay()
        replay_seconds.append(time.perf_counter() - started)
        torch.cuda.synchronize()
    return min(replay_seconds)
