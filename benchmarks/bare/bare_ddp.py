"""A plain DistributedDataParallel script, as `torchrun` starts it. It knows nothing of Paceline.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python benchmarks/bare/bare_ddp.py DATA.npz EPOCHS BATCH

BATCH is the batch of all processes together. Each process prints what `bare_single.py` prints.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from bare_single import Data, batches, evaluate, starting_model, train_epoch
from torch.nn.parallel import DistributedDataParallel


def loop(path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """As of `bare_single.py`, on this process's share; the process group is there already."""
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Data(path)
    model = starting_model(data)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, eps=1e-7, fused=True)
    data.test_images, data.test_labels = data.test_images[rank::world], data.test_labels[rank::world]

    def epoch(number: int) -> tuple[float, float, float]:
        dist.barrier()
        cpu, started = time.process_time(), time.perf_counter()
        losses = train_epoch(wrapped, optimizer, data, batches(len(data.train_images), batch, number, rank, world))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        evaluate(model, data)
        return seconds, cpu, float(torch.stack(losses).mean())

    return epoch


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train = loop(sys.argv[1], int(sys.argv[3]))
    print(json.dumps([train(number) for number in range(int(sys.argv[2]))]), flush=True)
    # The wrapper must go before the group: otherwise some exits abort after all work is done.
    del train
    gc.collect()
    dist.destroy_process_group()
    os._exit(0)
