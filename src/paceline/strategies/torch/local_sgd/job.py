"""Workers that train on their own and average their models now and then."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.contract.job import Evaluation
from paceline.frameworks.torch.checkpoint import TorchCheckpoint
from paceline.frameworks.torch.training import TorchJob
from paceline.workloads.base import Weights


class FlatMean:
    """The mean over all workers of a set of tensors, by one all-reduce.

    PyTorch's own model averaging rewrites channels-last weights in plain order; here each tensor keeps its strides.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self.row = torch.cat([tensor.new_empty(tensor.numel()) for tensor in tensors])
        places = self.row.split([tensor.numel() for tensor in tensors])
        self._views = [
            place.as_strided(tensor.size(), torch.empty_like(tensor).stride())
            for place, tensor in zip(places, tensors, strict=True)
        ]
        self.put(tensors)

    def put(self, tensors: list[Tensor]) -> None:
        """Copies the tensors into the row of numbers."""
        torch._foreach_copy_(self._views, tensors)

    def take(self, tensors: list[Tensor]) -> None:
        """Copies the row back into the tensors."""
        torch._foreach_copy_(tensors, self._views)

    def average(self) -> None:
        """Averages tensors over all workers."""
        dist.all_reduce(self.row)
        self.row.div_(dist.get_world_size())


class OuterMomentum:
    """DiLoCo's outer optimizer: what the workers moved on average is a gradient for Nesterov momentum."""

    def __init__(self, row: Tensor, lr: float, momentum: float) -> None:
        self._lr, self._momentum = lr, momentum
        self._anchor, self._velocity = row.clone(), torch.zeros_like(row)

    @property
    def held_bytes(self) -> int:
        """Bytes of the model that the workers last agreed on, and of the velocity."""
        return int(self._anchor.nbytes + self._velocity.nbytes)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What it keeps, by name."""
        return {"anchor": self._anchor, "velocity": self._velocity}

    def start_from(self, row: Tensor) -> None:
        """The model that all workers have now."""
        self._anchor.copy_(row)

    def move(self, row: Tensor) -> None:
        """Turns the mean of the workers' models into the model that they go on from."""
        moved = self._anchor - row
        self._velocity.mul_(self._momentum).add_(moved)
        self._anchor.sub_(moved.add_(self._velocity, alpha=self._momentum), alpha=self._lr)
        row.copy_(self._anchor)


class LocalSgdJob(TorchJob):
    """Gradients are averaged in each step of the warm-up; after it, models every so many steps."""

    def __init__(self, *parts: Any, every: int, warmup_steps: int, outer: tuple[float, float], **more: Any) -> None:
        super().__init__(*parts, **more)
        self._every, self._warmup_steps, self._steps = every, warmup_steps, 0
        self._parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._weights = [parameter.detach() for parameter in self._parameters]
        # Running statistics of normalisation layers belong to the model as its weights do.
        self._statistics = [buffer for buffer in self._module.buffers() if buffer.is_floating_point()]
        self._mean = FlatMean(self._weights)
        self._mean_statistics = FlatMean(self._statistics) if self._statistics else None
        lr, momentum = outer
        self._outer = OuterMomentum(self._mean.row, lr, momentum) if momentum else None

    def _update(self, loss: Tensor) -> None:
        if self._steps < self._warmup_steps:
            self._average_gradients()
        super()._update(loss)
        self._steps += 1
        local_steps = self._steps - self._warmup_steps
        if local_steps == 0 and self._outer:
            self._mean.put(self._weights)
            self._outer.start_from(self._mean.row)
        elif local_steps > 0 and local_steps % self._every == 0:
            self._average_models(self._outer)

    def _average_gradients(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self._parameters]
        self._mean.put(gradients)
        self._mean.average()
        self._mean.take(gradients)

    def _average_models(self, outer: OuterMomentum | None = None) -> None:
        self._mean.put(self._weights)
        self._mean.average()
        if outer:
            outer.move(self._mean.row)
        self._mean.take(self._weights)
        if self._mean_statistics:
            self._mean_statistics.put(self._statistics)
            self._mean_statistics.average()
            self._mean_statistics.take(self._statistics)

    def evaluate(self) -> Evaluation:
        """Evaluates the mean model; the workers then go on from where each of them was."""
        with self._averaged():
            return super().evaluate()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        held = [*self._weights, *self._statistics]
        local = [tensor.clone() for tensor in held]
        self._average_models()
        yield
        torch._foreach_copy_(held, local)

    def weights(self) -> Weights:
        """Weights of the mean model, which is what the run leaves."""
        self._average_models()
        return super().weights()

    def checkpoint(self) -> TorchCheckpoint:
        """Each worker's own model and optimizer, which differ between exchanges, and what the outer optimizer keeps."""
        checkpoint = self._checkpoint_of(self._module, self._outer.tensors if self._outer else None)
        checkpoint.numbers.append((self, "_steps"))
        return checkpoint

    def details(self) -> dict[str, Any]:
        """Adds the steps that this worker has contributed."""
        details = super().details()
        if self._outer:
            details["held_bytes"]["optimizer"] += self._outer.held_bytes
        return {**details, "updates": self._steps}

    def close(self) -> None:
        """Lets go of the model before the process group goes."""
        del self._parameters, self._weights, self._statistics, self._mean, self._mean_statistics, self._outer
        super().close()
