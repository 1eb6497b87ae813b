"""Plain DistributedDataParallel by hand: nothing here knows of Paceline.

torchrun --nproc-per-node 2 train.py
paceline run train.py --workers 1,2 --local-batch 64
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Trains a small network on made-up images and prints its samples/s after the first step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker in a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(0)
    samples = options.batch * options.steps * world
    data = TensorDataset(torch.randn(samples, 256), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, options.batch, sampler=DistributedSampler(data), drop_last=True)
    layers = [nn.Linear(256, options.width), nn.ReLU(), nn.Linear(options.width, options.width), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(options.width, 10)).to(device))
    optimizer = torch.optim.Adam(model.parameters())

    began = 0.0
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device)).backward()
        optimizer.step()
        if number == 0:
            began = time.perf_counter()
    seconds = time.perf_counter() - began
    if rank == 0:
        print(f"samples/s {(options.steps - 1) * options.batch * world / seconds:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
