"""A module's trainable parameters as views of one flat vector, so that any range of it can be sent as it lies."""

from collections.abc import Callable

import torch
from torch import nn

from paceline.errors import ModelError


class FlatParameters:
    """All trainable parameters in one vector, the last first, as backward passes produce gradients.

    On a CPU messages go from and to the very memory that the network uses. On a GPU they go from and to page-locked
    copies in main memory. Buffers, such as running means, are no parameters and stay with their worker.
    """

    def __init__(self, module: nn.Module, device: torch.device, kind: torch.dtype = torch.float32) -> None:
        self.parameters = [parameter for parameter in reversed(list(module.parameters())) if parameter.requires_grad]
        for parameter in self.parameters:
            if parameter.dtype != kind:
                raise ModelError(
                    f"the model has parameters in {str(parameter.dtype).removeprefix('torch.')}; parameter servers "
                    f"keep them in {str(kind).removeprefix('torch.')}: build it in float32, or use torch-ddp"
                )
        self.edges = [0]
        for parameter in self.parameters:
            self.edges.append(self.edges[-1] + parameter.numel())
        pinned = device.type == "cuda"
        self.values = torch.empty(self.elements, device=device, dtype=kind)
        self.gradients = torch.zeros(self.elements, pin_memory=pinned, dtype=kind)
        # Where parameters arrive and leave from.
        self.landing = torch.empty(self.elements, pin_memory=pinned, dtype=kind) if pinned else self.values
        self._gradient_views = []
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters):
                # Its own order in memory, channels-last for instance, so that both sides lie alike.
                strides = torch.empty_like(parameter).stride()
                view = self.values.as_strided(parameter.shape, strides, self.edges[number])
                parameter.data = view.copy_(parameter)
                self._gradient_views.append(self.gradients.as_strided(parameter.shape, strides, self.edges[number]))
            self.landing.copy_(self.values)

    @property
    def elements(self) -> int:
        """The number of trainable parameters."""
        return self.edges[-1]

    def touched(self, start: int, stop: int) -> list[int]:
        """Numbers of the parameters that have elements in a range."""
        return [n for n in range(len(self.parameters)) if self.edges[n] < stop and self.edges[n + 1] > start]

    def keep_gradient(self, number: int, scale: float, add: bool) -> None:
        """Moves a parameter's gradient into the flat vector, or adds it to what is there; absent counts as zero."""
        view, gradient = self._gradient_views[number], self.parameters[number].grad
        self.parameters[number].grad = None
        if gradient is None:
            if not add:
                view.zero_()
        elif gradient.is_cuda:
            before = view.to(gradient.device, non_blocking=True) if add else 0.0
            view.copy_(before + gradient * scale, non_blocking=True)
        elif add:
            view.add_(gradient, alpha=scale)
        else:
            torch.mul(gradient, scale, out=view)

    def land(self) -> None:
        """Copies received parameters to where the network reads them."""
        if self.landing is not self.values:
            self.values.copy_(self.landing, non_blocking=True)

    def on_gradient(self, act: Callable[[int], None]) -> list[torch.utils.hooks.RemovableHandle]:
        """Calls `act` with a parameter's number once its gradient is there; from then on it may be overwritten."""
        return [
            parameter.register_post_accumulate_grad_hook(lambda _parameter, number=number: act(number))
            for number, parameter in enumerate(self.parameters)
        ]
