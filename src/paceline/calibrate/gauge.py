"""Measurements that are no training run: processes of their own that time layers or transfers."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.contract.context import Process
from paceline.errors import UserError
from paceline.runs.devices import process_environment
from paceline.runs.processes import run_folder
from paceline.spec import RunSpec

PATIENCE_SECONDS = 180.0
MEASURES = "paceline.calibrate.torch_gauge"
# Kilobytes to 64 MB, four times as much each.
SIZES = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
KINDS = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]


@dataclass(frozen=True)
class Gauge:
    """Asks a process that has PyTorch imported for measurements, one after another."""

    cores: tuple[int, ...]
    folder: Path
    process: "subprocess.Popen[bytes]"

    def layers(self, at_once: int) -> dict[str, Any]:
        """What the first of so many processes finds that all time the same layers at the same time.

        Several time some of the layers; one times all, and beside them the optimizer, input, and what layers hold.
        """
        return self._measured(at_once, [], [])

    def transfers(self, ranks: int, sizes: list[int] = SIZES) -> dict[str, Any]:
        """What the first of so many processes finds of transfers between them."""
        return self._measured(ranks, sizes, KINDS)

    def _measured(self, ranks: int, sizes: list[int], kinds: list[str]) -> dict[str, Any]:
        store = self.folder / "store"
        store.unlink(missing_ok=True)
        requests = [
            {"rank": rank, "world": ranks, "store": str(store), "sizes": sizes, "kinds": kinds,
             "cores": [self.cores[rank % len(self.cores)]], "answer": str(self.folder / f"answer-{rank}.json"),
             "log": str(self._log(rank))}
            for rank in range(ranks)
        ]  # fmt: skip
        codes = self._asked(json.dumps(requests))
        for rank, code in enumerate(codes):
            if code:
                raise _failed(ranks, self._log(rank))
        return dict(json.loads((self.folder / "answer-0.json").read_text()))

    def _asked(self, request: str) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{request}\n".encode())
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise UserError(f"measuring took more than {PATIENCE_SECONDS:g} s; calibrate on a quieter machine")
        answer = self.process.stdout.readline()
        if not answer:
            raise _failed(len(json.loads(request)), self.folder / "log.txt")
        return list(json.loads(answer))

    def _log(self, rank: int) -> Path:
        return self.folder / f"log-{rank}.txt"


def _failed(ranks: int, log: Path) -> UserError:
    tail = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return UserError(f"measuring with {ranks} processes failed: {tail}; run paceline doctor to see what is here")


@contextlib.contextmanager
def gauging(cores: tuple[int, ...]) -> Iterator[Gauge]:
    """A gauge, and the end of it and of all that it started."""
    spec, process = RunSpec(global_batch=1, steps=1), Process(0, 1, "worker", 0, cores[:1])
    with run_folder() as folder, (folder / "log.txt").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-P", "-m", "paceline.runs.gauge_template", str(os.getpid()), MEASURES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=process_environment(spec, process, os.environ),
            process_group=0,
        )
        with started:
            try:
                yield Gauge(cores, folder, started)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
