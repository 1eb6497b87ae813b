"""A loss in which classes weigh unequally, so that the mean of two means is not the mean of all."""

import torch
from torch import nn
from torch.nn import functional


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))


def loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, weight=torch.arange(1.0, 11.0))
