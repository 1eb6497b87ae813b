"""A plain PyTorch training loop in one process, as a careful person writes it by hand. It knows nothing of Paceline.

python benchmarks/bare/bare_single.py DATA.npz EPOCHS BATCH

Prints seconds, CPU seconds and mean loss of every epoch as JSON.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# From the axes of a given weight to PyTorch's, by their number: biases, dense layers, convolutions.
AXES = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}


class ChannelsLastFlatten(nn.Module):
    """Flattens channels-last images without copying them."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, h * w * c)."""
        return x.permute(0, 2, 3, 1).flatten(1)


def network(channels: list[int], units: list[int], side: int = 28, classes: int = 10) -> nn.Sequential:
    """Convolutions with pooling before ReLU (the same result for a quarter of the work), then dense layers."""
    layers: list[nn.Module] = []
    width = 1
    for out in channels:
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        width, side = out, side // 2
    layers.append(ChannelsLastFlatten())
    width *= side * side
    for out in units:
        layers += [nn.Linear(width, out), nn.ReLU(inplace=True)]
        width = out
    layers.append(nn.Linear(width, classes))
    return nn.Sequential(*layers)


class Data:
    """The arrays of DATA.npz as tensors in memory, images with channels fastest."""

    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self.train_images = torch.from_numpy(arrays["train_inputs"]).permute(0, 2, 3, 1).contiguous()
            self.test_images = torch.from_numpy(arrays["test_inputs"]).permute(0, 2, 3, 1).contiguous()
            self.train_labels = torch.from_numpy(arrays["train_targets"])
            self.test_labels = torch.from_numpy(arrays["test_targets"])
            self.channels, self.units = arrays["channels"].tolist(), arrays["units"].tolist()
            self.weights = [torch.from_numpy(arrays[f"weight{n}"]) for n in range(int(arrays["weights"]))]


def starting_model(data: Data) -> nn.Sequential:
    """The network with the given starting weights: convolutions come as (h, w, in, out), dense ones as (in, out)."""
    model = network(data.channels, data.units)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), data.weights, strict=True):
            parameter.copy_(weight.permute(*AXES[weight.ndim]))
    return model.to(memory_format=torch.channels_last)


def batches(samples: int, batch: int, epoch: int, rank: int = 0, world: int = 1) -> Tensor:
    """One process's share of the epoch's shuffled batches, one row of sample numbers per step."""
    steps, share = samples // batch, batch // world
    order = np.random.Generator(np.random.PCG64([0, epoch])).permutation(samples)[: steps * batch]
    return torch.from_numpy(order.reshape(steps, batch)[:, rank * share : (rank + 1) * share].copy())


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, rows: Tensor) -> list[Tensor]:
    """One pass; the losses stay tensors so that nothing waits for them."""
    losses = []
    for index in rows:
        images, labels = data.train_images[index].permute(0, 3, 1, 2), data.train_labels[index]
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def evaluate(model: nn.Module, data: Data, batch: int = 512) -> float:
    """Accuracy on the test images, outside the timed part as in any tidy script."""
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in zip(data.test_images.split(batch), data.test_labels.split(batch), strict=True):
            right += int((model(images.permute(0, 3, 1, 2)).argmax(1) == labels).sum())
    model.train()
    return right / len(data.test_labels)


def loop(path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """A model of its own, ready to train; the function trains an epoch: seconds, CPU seconds, mean loss."""
    data = Data(path)
    model = starting_model(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, eps=1e-7, fused=True)

    def epoch(number: int) -> tuple[float, float, float]:
        cpu, started = time.process_time(), time.perf_counter()
        losses = train_epoch(model, optimizer, data, batches(len(data.train_images), batch, number))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        evaluate(model, data)
        return seconds, cpu, float(torch.stack(losses).mean())

    return epoch


if __name__ == "__main__":
    train = loop(sys.argv[1], int(sys.argv[3]))
    print(json.dumps([train(number) for number in range(int(sys.argv[2]))]))
