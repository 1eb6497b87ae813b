"""A model whose base is frozen, with an adapter of low rank beside each of its layers and a head that are trained."""

import numpy as np
import torch
from torch import nn

WIDTH, RANK, CLASSES, SAMPLES = 256, 4, 10, 2048


class Adapted(nn.Module):
    """A frozen layer and what is added to its result (Hu et al., "LoRA", 2021)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


def build():
    embed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    return nn.Sequential(embed, Adapted(WIDTH, 2 * WIDTH), Adapted(2 * WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))


def data():
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((SAMPLES + 64, WIDTH), dtype=np.float32)
    targets = generator.integers(0, CLASSES, SAMPLES + 64)
    return inputs[:SAMPLES], targets[:SAMPLES], inputs[SAMPLES:], targets[SAMPLES:]
