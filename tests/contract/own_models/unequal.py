"""Models that several workers train otherwise than one: batch norms, and dropout in many forms."""

import torch
from torch import nn
from torch.nn import functional


class Normed(nn.Module):
    """A convolution and a row of numbers with a batch norm behind each."""

    def __init__(self):
        super().__init__()
        self.conv, self.images = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.hidden, self.vectors = nn.Linear(6 * 36, 16), nn.BatchNorm1d(16, affine=False, momentum=None)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.relu(self.images(self.conv(x))).flatten(1)
        return self.head(functional.relu(self.vectors(self.hidden(x))))


class Dropped(nn.Module):
    """Dropout of numbers, channels, attention weights and whole paths."""

    def __init__(self):
        super().__init__()
        self.conv, self.channels = nn.Conv2d(3, 8, 3), nn.Dropout2d(0.3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.drop, self.head = nn.Dropout(0.4), nn.Linear(8, 10)

    def forward(self, x):
        x = self.channels(self.conv(x)).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + functional.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if self.training else 0.0)
        path = x.new_empty((len(x), 1, 1)).bernoulli_(0.8) if self.training else 1.0
        return self.head(self.drop(x * path).mean(1))


class Noisy(nn.Module):
    """Noise that no sample has of its own."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x + torch.randn_like(x))


class Spared(nn.Module):
    """A layer that no pass uses."""

    def __init__(self):
        super().__init__()
        self.head, self.spare = nn.Linear(192, 10), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x.flatten(1))


def spared():
    return Spared()


def normed():
    return Normed()


def dropped():
    return Dropped()


def noisy():
    return Noisy()


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
