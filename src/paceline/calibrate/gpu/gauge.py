"""Asks processes forked from one with PyTorch to measure GPUs or slices, one after another or several together."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from paceline.calibrate.gpu.messages import GpuAnswer, GpuRequest, Part, Where
from paceline.calibrate.gpu.replay import NO_REPLAY, Replay
from paceline.contract.context import Process
from paceline.runs.devices import process_environment
from paceline.runs.folder import run_folder
from paceline.runs.fork_server import ForkedProcess, ForkServer
from paceline.runs.slices import mps, slice_environment
from paceline.runs.wire import ForkRequest
from paceline.spec import RunSpec
from paceline.systems.local import System

MEASURES = "paceline.calibrate.gpu.operations_gauge"
POLL_SECONDS = 0.1
# Beside what its parts may take: starting CUDA, joining NCCL, and a part that is at its last case.
PATIENCE_SECONDS = 45.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class GpuGauge:
    """Measures on one kind of device; a slice is `1 / slices` of the first GPU."""

    device: Where
    system: System
    slices: int
    folder: Path
    server: ForkServer
    say: Say
    # Variables that lead processes to the daemon that cuts the GPU.
    shared: dict[str, str]
    most_flops: float = float("inf")

    def measure(self, parts: dict[Part, float], world: int = 1, replay: Replay = NO_REPLAY) -> GpuAnswer:
        """What the first of so many processes measures of these parts, each with the seconds that it may take.

        Processes that fail or hang leave the reason, so that other measurements are kept.
        """
        store = self.folder / f"store-{world}-{time.monotonic_ns()}"
        answers, logs = ([self.folder / f"{name}-{rank}" for rank in range(world)] for name in ("answer", "log"))
        for path in answers:
            path.unlink(missing_ok=True)
        progress = self.folder / "progress"
        requests = [
            GpuRequest(
                parts=tuple(parts), seconds={str(part): seconds for part, seconds in parts.items()},
                device=self.device, most_flops=self.most_flops, rank=rank, world=world, replay=replay.operations,
                host_steps=replay.host_steps, share=1 / self.slices if self.device == "cuda-slice" else 1.0,
                store=store, progress=progress if rank == 0 else self.folder / f"progress-{rank}", answer=answers[rank],
            )
            for rank in range(world)
        ]  # fmt: skip
        reason = self._run(requests, logs, time.monotonic() + sum(parts.values()) + PATIENCE_SECONDS)
        if answers[0].is_file():
            answer = GpuAnswer.model_validate_json(answers[0].read_text())
            return answer if reason is None or not answer.failures else _with_reason(answer, logs)
        return GpuAnswer(failures=dict.fromkeys(map(str, parts), reason or "it left no answer"))

    def _run(self, requests: Sequence[GpuRequest], logs: Sequence[Path], until: float) -> str | None:
        """Why the processes did not all end well, or None."""
        entry = f"{__name__}:answer_request"
        # The operations of a model are more than a message can hold.
        orders = [request.answer.with_suffix(".request") for request in requests]
        for file, request in zip(orders, requests, strict=True):
            file.write_text(request.model_dump_json())
        try:
            processes = [
                self.server.fork(
                    ForkRequest(entry=entry, argument=str(file), log=log, environment=self._environment(request))
                )
                for request, file, log in zip(requests, orders, logs, strict=True)
            ]
            last_text = ""
            while None in (codes := [process.poll() for process in processes]):
                last_text = self._tell(requests[0].progress, last_text)
                if time.monotonic() > until:
                    _end(processes)
                    return "it did not end in time"
                if any(code for code in codes if code is not None):
                    # The others would wait for the one that failed.
                    _end(processes)
                    break
                self.server.collect_exit_codes(POLL_SECONDS)
        except ChildProcessError:
            return _last_words(self.folder / "log.txt")
        failed = [log for log, process in zip(logs, processes, strict=True) if process.wait()]
        return _last_words(failed[0]) if failed else None

    def _tell(self, progress: Path, last_text: str) -> str:
        with contextlib.suppress(OSError):
            text = progress.read_text()
            if text and text != last_text:
                self.say(text)
            return text
        return last_text

    def _environment(self, request: GpuRequest) -> dict[str, str]:
        if request.device != "cuda-slice":
            return {}
        spec = RunSpec(global_batch=self.slices, steps=1, device="cuda-slice", workers=self.slices)
        process = Process(request.rank, request.world, "worker", request.rank, self.system.cores[:1])
        return {**self.shared, **slice_environment(spec, process, self.system)}


def answer_request(file: str, _fds: list[int]) -> int:
    """The whole forked process: reads what to measure from a file, and leaves the answer in another."""
    request = GpuRequest.model_validate_json(Path(file).read_text())
    answer: GpuAnswer = import_module(MEASURES).measure(request)
    request.answer.write_text(answer.model_dump_json())
    return 0


def _end(processes: Sequence[ForkedProcess]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _with_reason(answer: GpuAnswer, logs: Sequence[Path]) -> GpuAnswer:
    reasons = {name: f"{reason} ({_last_words(logs[0])})" for name, reason in answer.failures.items()}
    return answer.model_copy(update={"failures": reasons})


def _last_words(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip().rpartition("\n")[2] or "it ended without a word"
    except OSError:
        return "it ended without a word"


@contextlib.contextmanager
def gpu_gauging(
    device: Where, system: System, slices: int, say: Say, most_flops: float = float("inf")
) -> Iterator[GpuGauge]:
    """A gauge, which ends with the context together with all that it started."""
    workers = slices if device == "cuda-slice" else 1
    spec = RunSpec(global_batch=workers, steps=1, device=device, workers=workers)
    environment = process_environment(spec, Process(0, 1, "worker", 0, system.cores[:1]), os.environ)
    with run_folder() as folder, (folder.path / "log.txt").open("wb") as log, mps(spec) as shared:
        server = ForkServer((MEASURES, __name__), environment, log)
        try:
            yield GpuGauge(device, system, slices, folder.path, server, say, shared, most_flops)
        finally:
            server.close()
