"""L-BFGS over servers: each keeps its slice of the history and of every vector, and only numbers are put together.

The two-loop recursion runs on the dot products of the basis (steps, gradient changes, gradient) instead of on vectors:
Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce", NIPS 2014. Rules as of `torch.optim.LBFGS` with one iteration
per step and no line search.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.strategies.torch.sandblaster.messages import PAIR_PRODUCTS, SINGLE_PRODUCTS

Numbers = npt.NDArray[np.float64]
# As in torch.optim.LBFGS: a pair must curve at least this much, a direction fall and a gradient reach at least that.
LEAST_CURVATURE, TOLERANCE_CHANGE, TOLERANCE_GRADIENT = 1e-10, 1e-9, 1e-7


class HistorySlice:
    """A server's slice of the parameters and of all that L-BFGS remembers."""

    def __init__(self, values: Tensor, history: int) -> None:
        self.values, self.gradient = values, torch.zeros_like(values)
        self.steps = torch.zeros(history, len(values))
        self.changes = torch.zeros(history, len(values))
        # Between two moves these are the last direction and gradient; `measure` makes them the newest pair.
        self.direction, self.previous = torch.zeros_like(values), torch.zeros_like(values)
        self._length, self._pairs = 0.0, 0

    def measure(self) -> Numbers:
        """Makes the newest pair (s, y) and takes its products, and the gradient's, with what is remembered."""
        gradient = self.gradient
        change, step = self.previous.neg_().add_(gradient), self.direction.mul_(self._length)
        self._length = 1.0
        single = [
            gradient.abs().sum(), gradient.dot(gradient), change.dot(step),
            change.dot(change), change.dot(gradient), step.dot(gradient),
        ]  # fmt: skip
        pairs = torch.zeros(PAIR_PRODUCTS, len(self.steps))
        known_steps, known_changes = self.steps[: self._pairs], self.changes[: self._pairs]
        for row, (known, vector) in enumerate(
            (
                (known_steps, gradient), (known_changes, gradient),
                (known_steps, change), (known_changes, change), (known_changes, step),
            )
        ):  # fmt: skip
            pairs[row, : self._pairs] = known @ vector
        products: Numbers = torch.cat((torch.stack(single), pairs.flatten())).double().numpy()
        return products

    def move(self, orders: "Orders") -> None:
        """Remembers the newest pair if it is good, then steps along the direction with the given coordinates."""
        if orders.slot is not None:
            self.steps[orders.slot], self.changes[orders.slot] = self.direction, self.previous
            self._pairs = max(self._pairs, orders.slot + 1)
        weights = torch.from_numpy(orders.weights).float()
        in_steps, in_changes = weights[:-1].view(2, -1)[:, : self._pairs]
        torch.mul(self.gradient, weights[-1], out=self.direction)
        self.direction.addmv_(self.changes[: self._pairs].T, in_changes)
        self.direction.addmv_(self.steps[: self._pairs].T, in_steps)
        self.previous.copy_(self.gradient)
        self._length = orders.length
        if orders.moves:
            self.values.add_(self.direction, alpha=self._length)

    def stay(self) -> None:
        """The gradient is zero for all purposes: this step leaves no trace."""
        self.previous.neg_().add_(self.gradient)

    @property
    def held_bytes(self) -> dict[str, int]:
        """Parameters, and everything else that stays from step to step."""
        remembered = (self.steps, self.changes, self.direction, self.previous)
        return {
            "parameters": self.values.numel() * self.values.element_size(),
            "optimizer": sum(tensor.numel() * tensor.element_size() for tensor in remembered),
        }


@dataclass(frozen=True)
class Orders:
    """How to move: where the newest pair is remembered if at all, the direction's coordinates, how far along it."""

    slot: int | None
    length: float
    moves: bool
    # For the steps, the gradient changes and the gradient.
    weights: Numbers


class Recursion:
    """The coordinator's side: dot products in, coordinates of the direction out."""

    def __init__(self, history: int, lr: float) -> None:
        self._history, self._lr = history, lr
        self._steps_by_changes = np.zeros((history, history))
        self._changes_by_changes = np.zeros((history, history))
        self._slots: list[int] = []
        self._scale, self._iterations = 1.0, 0

    def orders(self, products: Numbers, largest_gradient: float) -> Orders | None:
        """The next move, or None where the gradient is as good as zero."""
        if largest_gradient <= TOLERANCE_GRADIENT:
            return None
        absolute, squared, change_step, change_change, change_gradient, step_gradient = products[:SINGLE_PRODUCTS]
        by_pairs = products[SINGLE_PRODUCTS:].reshape(PAIR_PRODUCTS, self._history).copy()
        self._iterations += 1
        slot = None
        if self._iterations > 1 and change_step > LEAST_CURVATURE:
            slot = self._remember(by_pairs, change_step, change_change)
            by_pairs[0, slot], by_pairs[1, slot] = step_gradient, change_gradient
            self._scale = change_step / change_change
        weights = self._direction(by_pairs[0], by_pairs[1])
        length = min(1.0, 1.0 / absolute) * self._lr if self._iterations == 1 else self._lr
        slope = weights[:-1] @ by_pairs[:2].flatten() + weights[-1] * squared
        return Orders(slot, length, bool(slope <= -TOLERANCE_CHANGE), weights)

    def _remember(self, by_pairs: Numbers, change_step: float, change_change: float) -> int:
        """Puts the newest pair's products in the place of the oldest pair once the history is full."""
        slot = len(self._slots) if len(self._slots) < self._history else self._slots.pop(0)
        self._slots.append(slot)
        _, _, steps_by_change, changes_by_change, changes_by_step = by_pairs
        self._steps_by_changes[:, slot], self._steps_by_changes[slot, :] = steps_by_change, changes_by_step
        self._changes_by_changes[:, slot] = self._changes_by_changes[slot, :] = changes_by_change
        self._steps_by_changes[slot, slot] = change_step
        self._changes_by_changes[slot, slot] = change_change
        return slot

    def _direction(self, steps_by_gradient: Numbers, changes_by_gradient: Numbers) -> Numbers:
        """Two loops over numbers: the coordinates of minus the inverse Hessian times the gradient."""
        in_steps, in_changes, in_gradient = np.zeros(self._history), np.zeros(self._history), -1.0
        first = {}
        for slot in reversed(self._slots):
            curvature = self._steps_by_changes[slot, slot]
            along = self._steps_by_changes[slot] @ in_changes + in_gradient * steps_by_gradient[slot]
            first[slot] = along / curvature
            in_changes[slot] -= first[slot]
        in_changes *= self._scale
        in_gradient *= self._scale
        for slot in self._slots:
            along = (
                self._changes_by_changes[slot] @ in_changes
                + self._steps_by_changes[:, slot] @ in_steps
                + in_gradient * changes_by_gradient[slot]
            )
            in_steps[slot] += first[slot] - along / self._steps_by_changes[slot, slot]
        return np.concatenate((in_steps, in_changes, [in_gradient]))
