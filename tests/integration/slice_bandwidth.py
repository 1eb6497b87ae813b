"""What an all-reduce among slices of one GPU moves.

`python slice_bandwidth.py RANKS TRANSPORT` starts the ranks and prints JSON: how they talked, and for each size of the
payload in bytes the bytes that each rank sent per second.
"""

import json
import os
import socket
import subprocess
import sys

from paceline.contract.context import Context, Process, Rendezvous
from paceline.runs.slices import mps, slice_environment
from paceline.spec import RunSpec
from paceline.systems import local_system

SIZES = (1 << 20, 16 << 20, 64 << 20, 256 << 20)
HOST = "127.0.0.1"
# Ranks that wait for each other for ever must not hold up whoever asked.
PATIENCE_SECONDS = 60.0


def process_of(spec: RunSpec, rank: int) -> Process:
    return Process(rank, spec.workers, "worker", rank, (0,))


def start(spec: RunSpec) -> str:
    """Runs all ranks and gives what the first of them says."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    ranks: list[subprocess.Popen[str]] = []
    with mps(spec) as paths:
        try:
            for rank in range(spec.workers):
                command = [sys.executable, __file__, str(spec.workers), spec.transport, str(rank), str(port)]
                share = slice_environment(spec, process_of(spec, rank), local_system())
                ranks.append(
                    subprocess.Popen(command, env={**os.environ, **share, **paths}, stdout=subprocess.PIPE, text=True)
                )
            said, _ = ranks[0].communicate(timeout=PATIENCE_SECONDS)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    return said


def measure(spec: RunSpec, rank: int, port: int) -> dict[str, object]:
    """This rank's part."""
    import torch.distributed as dist

    from paceline.frameworks.torch.group import join_group, link_bytes_per_second

    context = Context(spec, process_of(spec, rank), Rendezvous(HOST, port))
    join_group(context)
    speeds = {size: link_bytes_per_second(spec.workers, size) for size in SIZES}
    dist.barrier(device_ids=[0])
    dist.destroy_process_group()
    return {**context.notes, "bytes_per_second": speeds}


if __name__ == "__main__":
    count, transport, *rest = sys.argv[1:]
    fields = {"device": "cuda-slice", "workers": int(count), "slices": int(count), "transport": transport}
    asked = RunSpec.model_validate({**fields, "strategy": "torch-ddp", "global_batch": 64, "steps": 1})
    sys.stdout.write(json.dumps(measure(asked, *map(int, rest))) if rest else start(asked))
