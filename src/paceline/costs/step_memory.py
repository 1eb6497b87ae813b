"""Bytes of a training step, layer by layer, as a trace saw them: what stays, and the most there is at each moment.

From these the peak of any part of the model can be put together, and that of a pass of other samples.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer in a pass; the loss counts as the last layer."""

    layer: str
    parameter_bytes: float = 0
    gradient_bytes: float = 0
    # What its forward pass leaves for the backward pass.
    kept_bytes: float = 0
    # The most in its forward pass, over what stays and what the layers before it keep.
    forward_bytes: float = 0
    # The most in its backward pass, over what stays, what the layers before it keep and gradients of those behind it.
    backward_bytes: float = 0


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one device in a step over so many samples, with the whole model on it."""

    samples: float
    layers: tuple[LayerMemory, ...]
    # Beside the parameters of layers: what is not trained, and what the optimizer keeps.
    buffer_bytes: float = 0
    state_bytes: float = 0
    # The samples, where all of them are on the device.
    data_bytes: float = 0
    # What libraries take once and never give back.
    workspace_bytes: float = 0
    # The most in the update and in an evaluation, over what stays and all gradients.
    update_bytes: float = 0
    evaluation_bytes: float = 0
    # Samples that are evaluated at once, and all that there are.
    evaluation_samples: int = 1
    test_samples: int = 1

    @cached_property
    def parameter_bytes(self) -> float:
        """Bytes of the parameters of all layers."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @cached_property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients of all layers."""
        return sum(layer.gradient_bytes for layer in self.layers)

    @cached_property
    def kept_bytes(self) -> float:
        """What the forward pass leaves for the backward pass."""
        return sum(layer.kept_bytes for layer in self.layers)

    @cached_property
    def columns(self) -> tuple[list[float], list[float], list[float]]:
        """Columns over layers: bytes that each keeps, and the most in its forward and in its backward pass."""
        kept, forward, backward = zip(
            *((layer.kept_bytes, layer.forward_bytes, layer.backward_bytes) for layer in self.layers), strict=True
        )
        return list(kept), list(forward), list(backward)

    @cached_property
    def static_bytes(self) -> float:
        """Bytes that are allocated before a step as well as after it."""
        state = self.buffer_bytes + self.state_bytes
        return self.parameter_bytes + state + self.data_bytes + self.workspace_bytes

    @cached_property
    def passing_bytes(self) -> float:
        """The highest number of bytes in both passes above the static ones."""
        most, below, left = 0.0, 0.0, self.gradient_bytes
        for layer in self.layers:
            left -= layer.gradient_bytes
            most = max(most, below + layer.forward_bytes, below + layer.backward_bytes + left)
            below += layer.kept_bytes
        return most

    @cached_property
    def passing_beside_gradients(self) -> float:
        """Most bytes that come and go during both passes if all gradients already exist and count as static."""
        most, below = 0.0, 0.0
        for layer in self.layers:
            most = max(most, below + layer.forward_bytes, below + layer.backward_bytes)
            below += layer.kept_bytes
        return most

    def peak_bytes(self, accumulation: int = 1) -> float:
        """The peak of a step; with accumulation, later passes start with all gradients allocated."""
        passing = self.passing_bytes
        if accumulation > 1:
            passing = max(passing, self.gradient_bytes + self.passing_beside_gradients)
        after = self.gradient_bytes + max(self.update_bytes, self.evaluation_bytes)
        return self.static_bytes + max(passing, after)

    def evaluated_by(self, replicas: int) -> "StepMemory":
        """The step with its evaluation samples divided over `replicas` workers."""
        share = min(self.evaluation_samples, math.ceil(self.test_samples / replicas)) / self.evaluation_samples
        return replace(self, evaluation_bytes=self.evaluation_bytes * share)

    def towards(self, other: "StepMemory", samples: float) -> "StepMemory":
        """The same step with another number of samples, all byte counts on a line through the two steps."""
        share = (samples - self.samples) / (other.samples - self.samples)
        layers = tuple(
            replace(first, **_on_line(first, second, share))
            for first, second in zip(self.layers, other.layers, strict=True)
        )
        return replace(self, **{**_on_line(self, other, share), "samples": samples, "layers": layers})


def _on_line(first: LayerMemory | StepMemory, second: LayerMemory | StepMemory, share: float) -> dict[str, Any]:
    """All byte counts interpolated (or extrapolated) linearly, never below zero."""
    names = [field.name for field in fields(first) if field.name.endswith("_bytes")]
    pairs = {name: (getattr(first, name), getattr(second, name)) for name in names}
    return {name: max(0.0, a + (b - a) * share) for name, (a, b) in pairs.items()}
