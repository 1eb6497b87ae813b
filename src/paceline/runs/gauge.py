"""Measurements that are no training run: processes of their own that time layers or transfers."""

import json
import os
import subprocess
import sys
from typing import Any

from paceline.errors import UserError
from paceline.runs.devices import process_environment
from paceline.runs.processes import run_folder
from paceline.spec import RunSpec
from paceline.strategies.base import Process

PATIENCE_SECONDS = 180.0
# Kilobytes to 64 MB, four times as much each.
SIZES = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
KINDS = ["all-reduce", "all-gather", "broadcast", "send"]


def gauge_layers(at_once: int, cores: tuple[int, ...]) -> dict[str, Any]:
    """What the first of so many processes finds that all time the same layers at the same time."""
    return _gauge(at_once, cores, [], [])


def gauge_transfers(ranks: int, cores: tuple[int, ...], sizes: list[int] = SIZES) -> dict[str, Any]:
    """What the first of so many processes finds of transfers between them."""
    return _gauge(ranks, cores, sizes, KINDS)


def _gauge(ranks: int, cores: tuple[int, ...], sizes: list[int], kinds: list[str]) -> dict[str, Any]:
    spec = RunSpec(global_batch=1, steps=1)
    with run_folder() as folder:
        processes, answers = [], []
        for rank in range(ranks):
            own = (cores[rank % len(cores)],)
            answers.append(folder / f"answer-{rank}.json")
            request = {"rank": rank, "world": ranks, "store": str(folder / "store"), "sizes": sizes, "kinds": kinds,
                       "cores": list(own), "answer": str(answers[rank])}  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "paceline.frameworks.torch_gauge"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=process_environment(spec, Process(rank, ranks, "worker", rank, own), os.environ),
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            processes.append(process)
        try:
            codes = [process.wait(PATIENCE_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        said = [process.stderr.read().decode(errors="replace") if process.stderr else "" for process in processes]
        if any(codes):
            failed = next(rank for rank, code in enumerate(codes) if code)
            tail = said[failed].strip().rpartition("\n")[2]
            raise UserError(f"measuring with {ranks} processes failed: {tail}; run paceline doctor to see what is here")
        return dict(json.loads(answers[0].read_text()))
