"""Trains a small model with torch-mesh as it is, and with faults put in, and prints the losses of each run.

Used as a script by `test_torch_mesh_mutants.py`: takes a run for each fault as JSON, and forks every rank.
"""

import json
import multiprocessing
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel

from paceline.contract.context import Context, Process, Rendezvous
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.strategies.torch.mesh import job as mesh_job


def norm_of_one_stage() -> None:
    """The clip norm is not summed over the pipeline: each rank scales by its own stages' gradients."""
    clip = mesh_job.clip_over_mesh

    def clip_alone(*arguments: Any) -> None:
        summed, dist.all_reduce = dist.all_reduce, lambda *_arguments, **_fields: None
        try:
            clip(*arguments)
        finally:
            dist.all_reduce = summed

    mesh_job.clip_over_mesh = clip_alone


def unscaled_mean() -> None:
    """The loss is not divided by the number of data ranks, so that gradients are as many times too large."""
    split = mesh_job.split_loss

    def unscaled(*arguments: Any) -> Any:
        loss = split(*arguments)
        return lambda outputs, targets: loss(outputs, targets) * 2

    mesh_job.split_loss = unscaled


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "norm of one stage": norm_of_one_stage,
    "unscaled mean": unscaled_mean,
}


def train(spec: RunSpec, fault: str, rank: int, port: int, folder: Path, told: Any) -> None:
    FAULTS[fault]()
    torch.set_num_threads(1)
    place = Process(rank, spec.workers, "worker", rank, (0,))
    job: Any = strategy(spec.strategy).open_job(Context(spec, place, Rendezvous("127.0.0.1", port, None, folder)))
    job.start_epoch(0)
    job.step(0, int(spec.steps or 1))
    told.put((rank, job.losses()))
    job.align()
    job.close()


def losses_with(spec: RunSpec, fault: str) -> list[float]:
    """Mean losses of all ranks that know them."""
    processes = multiprocessing.get_context("fork")
    told = processes.Queue()
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ranks = [processes.Process(target=train, args=(spec, fault, rank, port, Path(folder), told))
                 for rank in range(spec.workers)]  # fmt: skip
        for process in ranks:
            process.start()
        found = [losses for _, losses in sorted(told.get(timeout=60) for _ in ranks) if losses]
        for process in ranks:
            process.join()
    return [sum(step) / len(step) for step in zip(*found, strict=True)]


if __name__ == "__main__":
    runs = {fault: complete(RunSpec.parse(run, "mutant")) for fault, run in json.loads(sys.argv[1]).items()}
    losses = {fault: {name: losses_with(run, name) for name in ("none", fault)} for fault, run in runs.items()}
    sys.stdout.write(json.dumps(losses))
