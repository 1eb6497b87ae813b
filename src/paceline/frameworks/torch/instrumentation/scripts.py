"""Records what a training script does that says nothing of it.

What every script calls in the end is wrapped before it starts: modules, `backward`, optimizers, data loaders, and the
process groups that it opens. Timed runs have none of it.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from paceline.frameworks.torch.instrumentation.collectives import BACKEND, register_timed_backend
from paceline.frameworks.torch.instrumentation.steps import profile_gpu
from paceline.spans import Kind, Span, SpanRecorder

GLOO = "gloo"


class ScriptPhases:
    """The parts of a script's steps: the outermost call counts, on the thread that the script began on.

    A forward pass that a backward pass repeats is part of the latter. Where an optimizer is handed a closure that makes
    both passes, as Lightning does, its own part is what follows the last of them.
    """

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder, self._thread = recorder, threading.get_ident()
        self._inside = False
        self._updating: tuple[int, Span] | None = None

    def recorded(self, kind: Kind, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, recording its outermost calls; forward passes only where gradients will be wanted."""
        only_with_gradients = kind == "forward"

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            # A compiler that follows this call must not meet a clock.
            if torch.compiler.is_compiling() or self._inside or self._recorder.closed:
                return function(*arguments, **named)
            if (only_with_gradients and not torch.is_grad_enabled()) or threading.get_ident() != self._thread:
                return function(*arguments, **named)
            self._inside = True
            span = self._recorder.add(Span(kind, kind, perf_counter_ns()))
            try:
                return function(*arguments, **named)
            finally:
                span.end = perf_counter_ns()
                self._inside = False
                if self._updating is not None:
                    self._updating[1].start = span.end

        return call

    def before_update(self, optimizer: object, _arguments: Any, _options: Any) -> None:
        """An optimizer begins; one within it, or within a backward pass, is part of what is around it."""
        within_another = self._updating is not None and self._updating[0] != id(optimizer)
        if not self._inside and not within_another:
            self._updating = id(optimizer), self._recorder.add(Span("optimizer", "optimizer", perf_counter_ns()))

    def after_update(self, optimizer: object, _arguments: Any, _options: Any) -> None:
        """An optimizer ends."""
        if self._updating is not None and self._updating[0] == id(optimizer):
            self._updating[1].end = perf_counter_ns()
            self._updating = None


def observe_script(recorder: SpanRecorder, on_gpu: bool) -> None:
    """Records the steps of whatever this process trains from now on, until the recorder is closed."""
    phases = ScriptPhases(recorder)
    nn.Module.__call__ = phases.recorded("forward", nn.Module.__call__)
    for name in ("backward", "grad"):
        _replace_everywhere(getattr(torch.autograd, name), phases.recorded("backward", getattr(torch.autograd, name)))
    DataLoader.__iter__ = phases.recorded("input", DataLoader.__iter__)
    _BaseDataLoaderIter.__next__ = phases.recorded("input", _BaseDataLoaderIter.__next__)
    register_optimizer_step_pre_hook(phases.before_update)
    register_optimizer_step_post_hook(phases.after_update)
    if on_gpu:
        _profile_steps(recorder)
    elif dist.is_available():
        _record_groups(recorder)


def _profile_steps(recorder: SpanRecorder) -> None:
    """Profiles the GPU from the first update on, when the script has chosen its device, and waits for it in each."""
    running = False

    def before(_optimizer: object, _arguments: Any, _options: Any) -> None:
        nonlocal running
        if not running:
            running = True
            profile_gpu(recorder)

    def after(_optimizer: object, _arguments: Any, _options: Any) -> None:
        if not recorder.closed:
            torch.cuda.synchronize()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _record_groups(recorder: SpanRecorder) -> None:
    """Groups that the script opens over gloo record their transfers; asked for their backend, they still say gloo."""
    register_timed_backend(recorder)
    for opening in (dist.init_process_group, dist.new_group):
        _replace_everywhere(opening, _with_timed_backend(opening))
    ask = dist.get_backend

    @wraps(ask)
    def get_backend(*arguments: Any, **named: Any) -> Any:
        backend = ask(*arguments, **named)
        return dist.Backend(GLOO) if backend == BACKEND else backend

    _replace_everywhere(ask, get_backend)


def _with_timed_backend(opening: Callable[..., Any]) -> Callable[..., Any]:
    """A function that opens groups, with the backend that records in the place of gloo."""
    signature = inspect.signature(opening)

    @wraps(opening)
    def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        backend = bound.arguments.get("backend")
        is_default = backend is None and opening.__name__ == "init_process_group"
        if not is_default and GLOO not in str(backend).lower():
            return opening(*arguments, **named)
        bound.arguments["backend"] = BACKEND
        return opening(*bound.args, **bound.kwargs)

    return call


def _replace_everywhere(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Puts a function in the place of another in every module of PyTorch that has imported it."""
    for home in [module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"]:
        for name, value in list(vars(home).items()):
            if value is function:
                setattr(home, name, replacement)
