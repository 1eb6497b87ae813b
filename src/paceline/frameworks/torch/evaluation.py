"""A PyTorch model on the test set: its loss, its accuracy where that has a meaning, and the metrics of its file."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.contract.context import Context
from paceline.contract.job import Evaluation
from paceline.data.tree import Tree, call, length, map_tree
from paceline.frameworks.torch.loaded_data import Agree, LoadedBatches
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import UserModel

# Of what the model returned and the targets, a tree of tensors.
Loss = Callable[[Any, Tree], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over samples, and over positions for sequences; classes may be of any whole type."""
    classes = targets if targets.is_floating_point() else targets.long()
    return functional.cross_entropy(outputs.flatten(0, -2), classes.flatten())


def usual_loss(outputs: Any, targets: Tree) -> Tensor:
    """The loss that the model computed itself, or cross-entropy of its logits."""
    loss: Tensor | None = None if isinstance(outputs, Tensor) else loss_in(outputs)
    if loss is None:
        return cross_entropy(logits_of(outputs), targets)
    # `nn.DataParallel` gathers a loss of each device.
    return loss.mean() if loss.ndim else loss


def loss_function(context: Context) -> Loss:
    """The user's loss, or the usual one."""
    user_model = context.model.user_model
    return user_model.loss if user_model is not None and user_model.loss is not None else usual_loss


@dataclass(frozen=True)
class TestPart:
    """One of `parts` stretches of the test set, looked at in as many batches as every other part."""

    data: ResidentData | LoadedBatches
    part: int
    parts: int
    # Of a stream, whose parts may be unlike.
    agree: Agree = lambda has_more: has_more

    def batches(self) -> Iterator[tuple[Tree, Tree]]:
        """Inputs and targets of each batch."""
        total = self.data.test_samples
        if isinstance(self.data, LoadedBatches):
            if total is None or self.data.is_stream:
                return self.data.test_stream(self.part, self.parts, self.agree)
            return self.data.read_test(self._stretches(total))
        data = self.data
        return (data.batch(data.test, rows) for rows in self._stretches(data.test_samples))

    def _stretches(self, total: int) -> list[slice]:
        begin, end = self.part * total // self.parts, (self.part + 1) * total // self.parts
        rounds = max(1, math.ceil(math.ceil(total / self.parts) / self.data.evaluation_batch))
        edges = [begin + (end - begin) * number // rounds for number in range(rounds + 1)]
        return [slice(start, stop) for start, stop in pairwise(edges)]


def evaluate(model: nn.Module, loss: Loss, user_model: UserModel | None, test: TestPart) -> Evaluation:
    """Sums over the part's samples."""
    loss_sum, predictions, correct, counted, metrics = 0.0, 0, 0, 0, Counter[str]()
    model.eval()
    with torch.no_grad():
        for inputs, targets in test.batches():
            # Stretches of data in memory are the data themselves, and a model may change what it is given.
            outputs = call(model, inputs if user_model is None else map_tree(Tensor.clone, inputs))
            samples = length(targets)
            # A stage of the model that is not its last returns nothing; where samples are few, a part may have none.
            if outputs is None or not samples:
                continue
            loss_sum += float(loss(outputs, targets)) * samples
            counted += samples
            if loss is usual_loss and (right := right_predictions(outputs, targets)) is not None:
                correct += right
                predictions += targets.numel()
            if user_model is not None:
                for name, value in user_model.metric_values(outputs, targets).items():
                    metrics[name] += value * samples  # type: ignore[assignment]
    model.train()
    return Evaluation(counted, loss_sum, predictions or None, correct if predictions else None, dict(metrics))


def right_predictions(outputs: Any, targets: Tree) -> int | None:
    """How many classes a model predicts rightly; None where its outputs are no scores of classes.

    Of a loss that the model computed itself it is not known what the targets are to the logits.
    """
    logits = logits_of(outputs)
    if loss_in(outputs) is not None or not isinstance(targets, Tensor) or not isinstance(logits, Tensor):
        return None
    if targets.is_floating_point() or logits.ndim != targets.ndim + 1:
        return None
    return int((logits.argmax(-1) == targets.long()).sum())
