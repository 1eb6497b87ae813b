"""A plain PyTorch training loop over a DataLoader whose batches are dicts, as a careful person writes it by hand.

python benchmarks/bare/bare_loader.py EPOCHS BATCH

Prints seconds, CPU seconds and mean loss of every epoch as JSON.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
from dict_batches import build, test, train
from torch import nn


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, epoch: int) -> list[float]:
    """One pass; the losses."""
    losses = []
    for inputs in train(batch, epoch):
        inputs["images"] = inputs["images"].contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        loss = model(**inputs)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluate(model: nn.Module, batch: int) -> float:
    """The mean loss on the test images, outside the timed part."""
    model.eval()
    with torch.no_grad():
        losses = [float(model(**inputs)["loss"]) for inputs in test(batch)]
    model.train()
    return sum(losses) / len(losses)


def loop(_path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """A model of its own, ready to train; the function trains an epoch: seconds, CPU seconds, mean loss."""
    torch.manual_seed(0)
    model = build().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, eps=1e-7, fused=True)

    def epoch(number: int) -> tuple[float, float, float]:
        cpu, started = time.process_time(), time.perf_counter()
        losses = train_epoch(model, optimizer, batch, number)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        evaluate(model, batch)
        return seconds, cpu, sum(losses) / len(losses)

    return epoch


if __name__ == "__main__":
    trained = loop("", int(sys.argv[2]))
    print(json.dumps([trained(number) for number in range(int(sys.argv[1]))]))
