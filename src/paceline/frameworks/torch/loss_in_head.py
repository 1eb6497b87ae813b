"""The head and the loss as one compiled function, for models that are compiled block by block.

What lies outside the blocks stays as slow as it is eagerly, and with a large vocabulary that is a third of a step or
more: a product of two-byte numbers whose rows do not begin at 16 bytes takes a path several times slower, and the loss
in single precision goes over all logits again and again. Compiled together, the table is padded for the product, and
the loss is computed from what the product gives.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.contract.context import Context
from paceline.data.tree import Tree, call
from paceline.frameworks.torch.evaluation import Loss

# Columns of the logits are a multiple of this: the width of the tiles in which GPUs compute products, which contains
# the 16 bytes that cuBLAS asks rows to begin at.
TILE_COLUMNS = 128

# Inputs and targets to their mean loss.
LossOfInputs = Callable[[Tree, Tree], Tensor]


def loss_of_inputs(context: Context, module: nn.Module, loss: Loss) -> LossOfInputs:
    """The loss of the module's outputs; computed by its head where the run is compiled and the head is known."""
    head = head_of(module) if "compiled" in context.spec.execution and context.model.user_model is None else None
    return loss_of_outputs(module, loss) if head is None else LossInHead(module, head, loss)


def loss_of_outputs(module: nn.Module, loss: Loss) -> LossOfInputs:
    """The loss as a function of what the module gives."""
    return lambda inputs, targets: loss(call(module, inputs), targets)


def head_of(module: nn.Module) -> nn.Linear | None:
    """The layer that outputs the logits, if it is the model's last."""
    last = list(module.children())[-1:]
    return last[0] if last and isinstance(last[0], nn.Linear) else None


class LossInHead:
    """A model whose head returns the loss while targets are set, and logits otherwise.

    The head's `forward` is replaced, so that no parameter changes its name and hooks around it stay as they are.
    """

    def __init__(self, module: nn.Module, head: nn.Linear, loss: Loss) -> None:
        self._module, self._head = module, head
        self._targets: Tensor | None = None
        self._scores = head.forward

        def compute(vectors: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
            return loss(padded_scores(vectors, weight, bias).float(), targets)

        self._loss = torch.compile(compute)
        head.forward = self._forward

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        self._targets = targets
        try:
            loss: Tensor = self._module(inputs)
        finally:
            self._targets = None
        return loss

    def _forward(self, vectors: Tensor) -> Tensor:
        if self._targets is None:
            return self._scores(vectors)
        return self._loss(vectors, self._head.weight, self._head.bias, self._targets)


def padded_scores(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer's outputs, computed with a zero-padded weight; the padding's outputs are cut off."""
    rows = len(weight)
    missing = -rows % TILE_COLUMNS
    bias = None if bias is None else functional.pad(bias, (0, missing))
    return functional.linear(vectors, functional.pad(weight, (0, 0, 0, missing)), bias)[..., :rows]
