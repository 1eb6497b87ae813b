"""A loop with Accelerate, whose tracker tells Paceline of each step.

torchrun --nproc-per-node 2 train.py
paceline run train.py --workers 1,2
"""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def main() -> None:
    """Trains a small network on made-up images and prints its samples/s after the first step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker in a step")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), log_with=paceline.callbacks.accelerate_tracker(options.batch)
    )
    accelerator.init_trackers("example")

    torch.manual_seed(0)
    samples = options.batch * options.steps * accelerator.num_processes
    data = TensorDataset(torch.randn(samples, 256), torch.randint(0, 10, (samples,)))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, options.batch, shuffle=True))

    began = 0.0
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()}, step=number)
        if number == 0:
            began = time.perf_counter()
    seconds = time.perf_counter() - began
    told = (options.steps - 1) * options.batch * accelerator.num_processes / seconds
    accelerator.print(f"samples/s {told:.1f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
