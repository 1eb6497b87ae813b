"""A layer of an LSTM, a GRU or a plain recurrent network as the single call that it is on GPUs (cuDNN).

On the meta device PyTorch takes it apart into a dozen operations for each position of a sequence, which no GPU is asked
for. Cores have one call for layers of an LSTM too (oneDNN), and run others position by position.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paceline.costs.operations import GRU_GATES, LSTM_GATES, Operation, OperationNumbers, recurrent
from paceline.frameworks.torch.trace.fused_norm import SPACE

RECURRENT_LAYER = f"{SPACE}::_recurrent_layer"
# Arrays as wide as the states that stay for the backward pass, by gates: those of the gates, the numbers of an LSTM's
# cell, and in a GRU what the reset gate is applied to.
KEPT = {LSTM_GATES: LSTM_GATES + 1, GRU_GATES: GRU_GATES + 1, 1: 1}
# States that a layer hands on: an LSTM also has those of its cells.
STATES = {LSTM_GATES: 2, GRU_GATES: 1, 1: 1}
# Of one direction: weights of inputs and of states.
MATRICES = 2
BATCHED_DIMENSIONS = 3

_library = torch.library.Library(SPACE, "FRAGMENT")
_library.define("_recurrent_layer(Tensor input, Tensor[] weights, int gates) -> (Tensor, Tensor, Tensor)")
_library.define(
    "_recurrent_layer_backward(Tensor gradient, Tensor input, Tensor[] weights, Tensor kept, int gates) -> Tensor[]"
)


def _forward(values: Tensor, weights: list[Tensor], gates: int) -> tuple[Tensor, Tensor, Tensor]:
    """States of all positions, the last ones of each kind, and what stays for the backward pass."""
    (length, samples, _), width = values.shape, _width(weights, gates)
    directions = _directions(weights)
    states = values.new_empty(length, samples, directions * width)
    last = values.new_empty(STATES[gates], directions, samples, width)
    return states, last, values.new_empty(length, samples, directions * width * KEPT[gates])


def _backward(_gradient: Tensor, values: Tensor, weights: list[Tensor], _kept: Tensor, _gates: int) -> list[Tensor]:
    return [torch.empty_like(values), *(torch.empty_like(weight) for weight in weights)]


_library.impl("_recurrent_layer", _forward, "Meta")
_library.impl("_recurrent_layer_backward", _backward, "Meta")


class FusedRecurrentLayer(torch.autograd.Function):
    """Keeps its inputs, its weights and its gates."""

    @staticmethod
    def forward(ctx: Any, gates: int, values: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        """One layer, in one direction or both."""
        states, last, kept = torch.ops.paceline_trace._recurrent_layer(values, list(weights), gates)
        ctx.gates = gates
        ctx.save_for_backward(values, kept, *weights)
        return states, last

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor, _last: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of inputs and weights."""
        values, kept, *weights = ctx.saved_tensors
        backward = torch.ops.paceline_trace._recurrent_layer_backward
        return None, *backward(gradient, values, weights, kept, ctx.gates)


def can_fuse(values: Tensor, weights: list[Tensor], biases: bool, layers: int, both_ways: bool) -> bool:
    """Whether it is a batch on the meta device for layers whose states are as wide as their cells."""
    plain = len(weights) == layers * (1 + both_ways) * MATRICES * (1 + biases)
    return plain and values.ndim == BATCHED_DIMENSIONS and values.device.type == "meta"


def fused_layers(
    gates: int, values: Tensor, weights: list[Tensor], layers: int, dropout: float, by_sample: bool
) -> tuple[Tensor, ...]:
    """What the kernels of all layers give: states of all positions, and the last ones of each kind."""
    values = values.transpose(0, 1) if by_sample else values
    share, last = len(weights) // layers, []
    for layer in range(layers):
        if layer and dropout:
            values = torch.ops.aten.native_dropout(values, dropout, True)[0]
        values, ended = FusedRecurrentLayer.apply(gates, values, *weights[layer * share : (layer + 1) * share])
        last.append(ended)
    return values.transpose(0, 1) if by_sample else values, *torch.cat(last, dim=1)


def _directions(weights: list[Tensor]) -> int:
    return sum(1 for weight in weights if weight.ndim > 1) // MATRICES


def _width(weights: list[Tensor], gates: int) -> int:
    return int(weights[0].shape[0]) // gates


def recurrent_layer(name: str, args: Any, numbers: OperationNumbers) -> Operation:
    """The operation of such a call."""
    backward = name.endswith("backward")
    values, weights = args[1:3] if backward else args[0:2]
    gates = args[-1]
    shape = (*values.shape, _width(weights, gates), _directions(weights))
    return recurrent(numbers, shape, backward=backward, gates_of_cell=gates)
