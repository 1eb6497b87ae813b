"""Measurements that are no training run: processes of their own that time layers or transfers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.runs.devices import process_environment
from paceline.runs.processes import run_folder
from paceline.spec import RunSpec
from paceline.strategies.base import Process

PATIENCE_SECONDS = 180.0
# Kilobytes to 64 MB, four times as much each.
SIZES = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
KINDS = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send"]


def gauge_layers(at_once: int, cores: tuple[int, ...]) -> dict[str, Any]:
    """What the first of so many processes finds that all time the same layers at the same time.

    Several time some of the layers; one times all, and beside them the optimizer, input, and what layers hold.
    """
    return _gauge(at_once, cores, [], [])


def gauge_transfers(ranks: int, cores: tuple[int, ...], sizes: list[int] = SIZES) -> dict[str, Any]:
    """What the first of so many processes finds of transfers between them."""
    return _gauge(ranks, cores, sizes, KINDS)


def _gauge(ranks: int, cores: tuple[int, ...], sizes: list[int], kinds: list[str]) -> dict[str, Any]:
    with run_folder() as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                core = cores[rank % len(cores)]
                request = {"rank": rank, "world": ranks, "store": str(folder / "store"), "sizes": sizes, "kinds": kinds,
                           "cores": [core], "answer": str(folder / f"answer-{rank}.json")}  # fmt: skip
                (folder / f"request-{rank}.json").write_text(json.dumps(request))
                processes.append(_start(folder, rank, ranks, core))
            codes = [process.wait(PATIENCE_SECONDS) for process in processes]
        except subprocess.TimeoutExpired:
            raise UserError(
                f"measuring took more than {PATIENCE_SECONDS:g} s; calibrate on a quieter machine"
            ) from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for rank, code in enumerate(codes):
            if code:
                tail = (folder / f"log-{rank}.txt").read_text(errors="replace").strip().rpartition("\n")[2]
                raise UserError(
                    f"measuring with {ranks} processes failed: {tail}; run paceline doctor to see what is here"
                )
        return dict(json.loads((folder / "answer-0.json").read_text()))


def _start(folder: Path, rank: int, ranks: int, core: int) -> "subprocess.Popen[bytes]":
    spec, process = RunSpec(global_batch=1, steps=1), Process(rank, ranks, "worker", rank, (core,))
    with (folder / f"request-{rank}.json").open("rb") as request, (folder / f"log-{rank}.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "paceline.frameworks.torch_gauge"],
            stdin=request,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=process_environment(spec, process, os.environ),
        )
