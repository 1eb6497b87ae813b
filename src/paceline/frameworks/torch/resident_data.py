"""The data set on the device: trees of tensors, from which each step takes its batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.base import EVALUATION_BATCH, DataSet
from paceline.data.tree import Tree, length, map_tree, take

IMAGE_DIMENSIONS = 4


@dataclass(frozen=True)
class ResidentData:
    """The data set on the device; images are stored with channels fastest when the memory format asks for it.

    `train` and `test` are inputs and targets, trees of tensors. Types are those of the arrays.
    """

    train: tuple[Tree, Tree]
    test: tuple[Tree, Tree]
    permuted: bool
    evaluation_batch: int = EVALUATION_BATCH

    @classmethod
    def load(
        cls,
        data: DataSet,
        device: torch.device,
        channels_last: bool,
        put: Callable[[np.ndarray, torch.device], Tensor] | None = None,
    ) -> "ResidentData":
        """Moves the arrays to the device once; `put` is how, where not all of them as they are."""
        move = put or _put
        moved: dict[tuple[int, bool], tuple[Tensor, Any]] = {}

        def resident(array: np.ndarray, is_input: bool) -> Tensor:
            permuted = is_input and channels_last and array.ndim == IMAGE_DIMENSIONS
            # Targets that are inputs too, such as labels, are there once. The array is kept so that none gets its id.
            if (id(array), permuted) not in moved:
                moved[id(array), permuted] = move(array.transpose(0, 2, 3, 1) if permuted else array, device), array
            return moved[id(array), permuted][0]

        def part(inputs: Tree, targets: Tree) -> tuple[Tree, Tree]:
            return (
                map_tree(lambda leaf: resident(leaf, True), inputs),
                map_tree(lambda leaf: resident(leaf, False), targets),
            )

        train, test = part(data.train_inputs, data.train_targets), part(data.test_inputs, data.test_targets)
        return cls(train, test, channels_last, data.evaluation_batch)

    @property
    def test_samples(self) -> int:
        """How many samples there are to test on."""
        return length(self.test[0])

    def batch(self, part: tuple[Tree, Tree], index: Tensor | slice) -> tuple[Tree, Tree]:
        """Inputs and targets of some samples, images in the logical order (n, c, h, w)."""
        inputs, targets = take(part[0], index), take(part[1], index)
        return (map_tree(_channels_first, inputs) if self.permuted else inputs), targets


def _put(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _channels_first(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == IMAGE_DIMENSIONS else tensor
