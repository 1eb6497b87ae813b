"""A layer of an LSTM as the single call that it is on cores (oneDNN) and on GPUs (cuDNN).

On the meta device PyTorch takes it apart into a dozen operations for each position of a sequence, which no device is
asked for. GRUs and plain recurrent layers stay taken apart, as PyTorch runs them on cores.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.costs.operations import LSTM_GATES, Operation, OperationNumbers, recurrent
from paceline.frameworks.torch.trace.fused_norm import SPACE

LSTM_LAYER = f"{SPACE}::_lstm_layer"
# For the backward pass the values of the gates stay, and the cell's own numbers.
KEPT = LSTM_GATES + 1
# Of one direction: weights of inputs and of states.
MATRICES = 2
BATCHED_DIMENSIONS = 3

_library = torch.library.Library(SPACE, "FRAGMENT")
_library.define("_lstm_layer(Tensor input, Tensor[] weights) -> (Tensor, Tensor, Tensor)")
_library.define("_lstm_layer_backward(Tensor gradient, Tensor input, Tensor[] weights, Tensor kept) -> Tensor[]")


def _forward(values: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """States of all positions, the last ones of both kinds, and what stays for the backward pass."""
    (length, samples, _), width = values.shape, _width(weights)
    directions = _directions(weights)
    made = values.new_empty(length, samples, directions * width)
    last = values.new_empty(2, directions, samples, width)
    return made, last, values.new_empty(length, samples, directions * width * KEPT)


def _backward(_gradient: Tensor, values: Tensor, weights: list[Tensor], _kept: Tensor) -> list[Tensor]:
    return [torch.empty_like(values), *(torch.empty_like(weight) for weight in weights)]


_library.impl("_lstm_layer", _forward, "Meta")
_library.impl("_lstm_layer_backward", _backward, "Meta")


class FusedLstmLayer(torch.autograd.Function):
    """Keeps its inputs, its weights and its gates."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        """One layer, in one direction or both."""
        made, last, kept = torch.ops.paceline_trace._lstm_layer(values, list(weights))
        ctx.save_for_backward(values, kept, *weights)
        return made, last

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor, _last: Tensor) -> tuple[Tensor, ...]:
        """Gradients of inputs and weights."""
        values, kept, *weights = ctx.saved_tensors
        return tuple(torch.ops.paceline_trace._lstm_layer_backward(gradient, values, weights, kept))


def can_fuse(values: Tensor, weights: list[Tensor], biases: bool, layers: int, both_ways: bool) -> bool:
    """Whether it is a batch on the meta device for layers whose states are as wide as their cells."""
    plain = len(weights) == layers * (1 + both_ways) * MATRICES * (1 + biases)
    return plain and values.ndim == BATCHED_DIMENSIONS and values.device.type == "meta"


def fused_lstm(
    values: Tensor, weights: list[Tensor], layers: int, dropout: float, by_sample: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernels of all layers give: states of all positions, and the last ones of both kinds."""
    values = values.transpose(0, 1) if by_sample else values
    share, last = len(weights) // layers, []
    for layer in range(layers):
        if layer and dropout:
            values = torch.ops.aten.native_dropout(values, dropout, True)[0]
        values, ended = FusedLstmLayer.apply(values, *weights[layer * share : (layer + 1) * share])
        last.append(ended)
    states, cells = torch.cat(last, dim=1)
    return values.transpose(0, 1) if by_sample else values, states, cells


def _directions(weights: list[Tensor]) -> int:
    return len([weight for weight in weights if weight.ndim > 1]) // MATRICES


def _width(weights: list[Tensor]) -> int:
    return int(weights[0].shape[0]) // LSTM_GATES


def lstm_layer(name: str, args: Any, numbers: OperationNumbers) -> Operation:
    """The operation of such a call."""
    backward = name.endswith("backward")
    values, weights = args[1:3] if backward else args[0:2]
    return recurrent(numbers, (*values.shape, _width(weights), _directions(weights)), backward=backward)
