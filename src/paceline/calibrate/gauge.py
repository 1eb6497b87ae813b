"""Measurements that are no training run: processes forked from one with PyTorch that time operations or transfers."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.contract.context import Process
from paceline.errors import UserError
from paceline.runs.devices import process_environment
from paceline.runs.folder import run_folder
from paceline.runs.fork_server import ForkServer
from paceline.runs.wire import ForkRequest, Message
from paceline.spec import RunSpec

PATIENCE_SECONDS = 180.0
POLL_SECONDS = 0.1
MEASURES = "paceline.calibrate.torch_gauge"
# Kilobytes to 64 MB, four times as much each.
SIZES = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
KINDS = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]


class GaugeRequest(Message):
    """What one of several processes is to measure: transfers of these kinds and sizes, or else operations."""

    rank: int
    world: int
    sizes: list[int]
    kinds: list[str]
    cores: list[int]
    # Where the processes meet, and where this one leaves what it measured.
    store: Path
    answer: Path


@dataclass(frozen=True)
class Gauge:
    """Asks a process that has PyTorch imported for measurements, one after another."""

    cores: tuple[int, ...]
    folder: Path
    server: ForkServer

    def operations(self, at_once: int) -> dict[str, Any]:
        """What the first of so many processes measures that all time the same operations at the same time.

        Several time some of the operations; one times all, and beside them what layers hold.
        """
        return self._measure(at_once, [], [])

    def transfers(self, ranks: int, sizes: list[int] = SIZES) -> dict[str, Any]:
        """Transfer timings between `ranks` processes, as the first of them measures them."""
        return self._measure(ranks, sizes, KINDS)

    def _measure(self, ranks: int, sizes: list[int], kinds: list[str]) -> dict[str, Any]:
        store = self.folder / "store"
        store.unlink(missing_ok=True)
        answers, logs = ([self.folder / f"{name}-{rank}" for rank in range(ranks)] for name in ("answer", "log"))
        requests = [
            GaugeRequest(
                rank=rank, world=ranks, sizes=sizes, kinds=kinds, cores=[self.cores[rank % len(self.cores)]],
                store=store, answer=answers[rank],
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            codes = self._run(requests, logs)
        except ChildProcessError:
            raise _failed(ranks, self.folder / "log.txt") from None
        for log, code in zip(logs, codes, strict=True):
            if code:
                raise _failed(ranks, log)
        return dict(json.loads(answers[0].read_text()))

    def _run(self, requests: list[GaugeRequest], logs: list[Path]) -> list[int]:
        """Runs processes that each answer one request, and gives their exit codes."""
        deadline, entry = time.monotonic() + PATIENCE_SECONDS, f"{__name__}:answer_request"
        processes = [
            self.server.fork(ForkRequest(entry=entry, argument=request.model_dump_json(), log=log))
            for request, log in zip(requests, logs, strict=True)
        ]
        while None in (codes := [process.poll() for process in processes]):
            if time.monotonic() > deadline:
                raise UserError(f"measuring took more than {PATIENCE_SECONDS:g} s; calibrate on a quieter machine")
            self.server.collect_exit_codes(POLL_SECONDS)
        return [code for code in codes if code is not None]


def answer_request(argument: str, _fds: list[int]) -> int:
    """The whole forked process: measures and leaves the answer in a file."""
    request = GaugeRequest.model_validate_json(argument)
    os.sched_setaffinity(0, request.cores)
    request.answer.write_text(json.dumps(import_module(MEASURES).measure(request)))
    return 0


def _failed(ranks: int, log: Path) -> UserError:
    tail = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return UserError(f"measuring with {ranks} processes failed: {tail}; run paceline doctor to see what is here")


@contextlib.contextmanager
def gauging(cores: tuple[int, ...]) -> Iterator[Gauge]:
    """A gauge, which ends with the context together with all that it started."""
    spec, process = RunSpec(global_batch=1, steps=1), Process(0, 1, "worker", 0, cores[:1])
    with run_folder() as folder, (folder.path / "log.txt").open("wb") as log:
        server = ForkServer((MEASURES, __name__), process_environment(spec, process, os.environ), log)
        try:
            yield Gauge(cores, folder.path, server)
        finally:
            server.close()
