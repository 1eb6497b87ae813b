"""Has two ranks of a group unscale gradients, of which one is infinite on one of them.

Used as a script by `test_torch_precision.py`: prints for each rank whether steps may be made, factors and gradients.
"""

import json
import multiprocessing
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.frameworks.torch.precision import LossScale

RANKS = 2


def unscale(rank: int, meeting: str, told: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    scale, parameter = LossScale(torch.device("cpu"), agree=True), nn.Parameter(torch.zeros(2))
    found: dict[str, list[Any]] = {"made": [], "factors": [], "gradients": []}
    for step in range(3):
        parameter.grad = torch.full((2,), scale.factor)
        if step == 1 and rank == 1:
            parameter.grad[0] = torch.inf
        may = scale.unscale([parameter])
        found["made"].append(may)
        found["factors"].append(scale.factor)
        found["gradients"].append(float(parameter.grad[0]) if may else None)
    told.put((rank, found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    processes = multiprocessing.get_context("fork")
    told = processes.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [processes.Process(target=unscale, args=(rank, f"{folder}/meeting", told)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        found = sorted((told.get(timeout=60) for _ in ranks), key=lambda answer: int(answer[0]))
        for process in ranks:
            process.join()
    sys.stdout.write(json.dumps([answer for _, answer in found]))


if __name__ == "__main__":
    main()
