"""A step as operations: what a device is asked to do for each layer, with shapes and numbers; the trace of a step.

A trace of a PyTorch model gives them as they are; those of built-in layers are worked out from their facts.
"""

from dataclasses import dataclass
from typing import Literal

# Products, convolutions and attention are bound by arithmetic as a rule, `memory` by bytes alone; an update is the
# optimizer's.
OperationKind = Literal["product", "convolution", "attention", "memory", "update"]
# What an operation multiplies with; sums may be wider.
OperationNumbers = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Operation:
    """One thing that a device is asked to do, `count` times in a pass.

    `shape` is, by kind: product (batch, rows, columns, inner); convolution (samples, input channels, height, width,
    output channels, kernel height, kernel width, stride, groups); attention (samples, heads, key heads, queries, keys,
    head width, 1 where causal); memory and update (numbers,).
    """

    kind: OperationKind
    numbers: OperationNumbers
    shape: tuple[int, ...]
    flops: float
    # Read and written, each array once.
    moved_bytes: float
    # As the framework calls it, where a trace has seen it.
    name: str = ""
    count: float = 1
    # Whether it is part of a backward pass; kernels of gradients are others.
    backward: bool = False


@dataclass(frozen=True)
class LayerOperations:
    """What both passes of one layer ask for, in order; what is recomputed comes first in the backward pass."""

    layer: str
    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]


@dataclass(frozen=True)
class StepOperations:
    """One pass of a batch through all layers, the loss as the last of them, and the update."""

    layers: tuple[LayerOperations, ...]
    update: tuple[Operation, ...]
