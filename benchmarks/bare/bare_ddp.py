"""A plain DistributedDataParallel script, as `torchrun` starts it. It knows nothing of Paceline.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python benchmarks/bare/bare_ddp.py DATA.npz EPOCHS BATCH

BATCH is the batch of all processes together. Prints one JSON object per process, as `bare_single.py` does.
"""

import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from bare_single import Data, batches, evaluate, starting_model, train_epoch
from torch.nn.parallel import DistributedDataParallel


def main(path: str, epochs: int, batch: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Data(path)
    model = starting_model(data)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, eps=1e-7, fused=True)
    data.test_images, data.test_labels = data.test_images[rank::world], data.test_labels[rank::world]
    views = []
    for epoch in range(epochs):
        dist.barrier()
        cpu, started = time.process_time(), time.perf_counter_ns()
        rows = batches(len(data.train_images), batch, epoch, rank, world)
        losses = train_epoch(wrapped, optimizer, data, rows)
        ended, cpu = time.perf_counter_ns(), time.process_time() - cpu
        loss = float(torch.stack(losses).mean())
        views.append({"started": started, "ended": ended, "cpu_seconds": cpu, "loss": loss})
        evaluate(model, data)
    print(json.dumps({"epochs": views}), flush=True)
    # The wrapper must go before the group: otherwise some exits abort after all work is done.
    del wrapped, optimizer
    gc.collect()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
