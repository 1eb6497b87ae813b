"""Models with several inputs, targets and outputs, and data in types of their own."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.nn import functional

TRAIN, TEST, PIXELS, WIDTH, CLASSES = 64, 20, 8, 4, 3


class Output(OrderedDict):
    """As Hugging Face's `ModelOutput`: a dict whose values are attributes too."""

    def __getattr__(self, name):
        return self[name]


class Named(nn.Module):
    """Takes bytes, booleans and numbers by name; the labels among them make it compute its loss."""

    def __init__(self):
        super().__init__()
        self.image, self.vector = nn.Conv2d(3, 4, 3), nn.Linear(WIDTH, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, vector, image=None, mask=None, labels=None):
        assert image.dtype == torch.uint8
        assert mask.dtype == torch.bool
        seen = functional.relu(self.image(image.float() / 255)).mean((2, 3)).repeat(1, 4)
        logits = self.head(torch.tanh(self.vector(vector.float()) + seen) * mask[:, None])
        loss = None if labels is None else functional.cross_entropy(logits, labels.long())
        return Output(loss=loss, logits=logits) if loss is not None else {"logits": logits, "seen": seen}


class Placed(nn.Module):
    """Takes two tensors one after the other and returns two."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, first, second):
        return self.first(first), self.second(second).sum(1)


def samples(count, seed):
    generator = np.random.default_rng(seed)
    inputs = {
        "image": generator.integers(0, 256, (count, 3, PIXELS, PIXELS)).astype(np.uint8),
        "vector": generator.standard_normal((count, WIDTH)),
        "mask": generator.random(count) > 0.2,
    }
    return inputs, generator.integers(0, CLASSES, count).astype(np.int16)


def named():
    return Named()


def placed():
    return Placed()
